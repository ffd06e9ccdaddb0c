"""A peer in a process of its own, asked for one generation at a time."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.environments import Missing

LOAD_SECONDS = 240
ANSWER_SECONDS = 240
_HERE = Path(__file__).resolve().parent


class Worker:
    """`script` of this folder under `python`; raises Missing where it does not load or answer."""

    def __init__(self, python: Path, script: str, model: Path, threads: int, mode: str) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [str(python), str(_HERE / script), str(model), str(threads), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        try:
            self._answer(LOAD_SECONDS)
        except BaseException:
            self.close()
            raise

    def generate(self, prompt: list[int], count: int) -> dict[str, Any]:
        """`tokens`, and the `seconds` and `cpu_seconds` that `timed` of them took after the first."""
        assert self._process.stdin is not None  # piped
        request = json.dumps({"prompt": prompt, "count": count}) + "\n"
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Missing("it has ended") from None
        return self._answer(ANSWER_SECONDS)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, seconds: int) -> dict[str, Any]:
        assert self._process.stdout is not None  # piped
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise Missing(f"no answer within {seconds} s" if not ready else "it ended without an answer")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Missing(answer["error"])
        return answer
