"""Compiles static graphs into a context binary for one chip, in a process of its own, and checks what comes
out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from hexgraft.export.htp.soc import Soc
from hexgraft.export.htp.wrapper import Wrapper, check_whole, rejected, rewrite
from hexgraft.models.errors import ExportError

BINARY_LIMIT = 2_000_000_000
"""Bytes of the largest context binary; more does not fit one NPU context."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A context binary and its wrappers, one a graph in the order given. `peak` is the compiling process's
    largest memory in bytes."""

    binary: Path
    wrappers: tuple[Path, ...]
    graphs: tuple[Wrapper, ...]
    seconds: float
    peak: int


def compile_binary(
    models: Mapping[str, Path],
    folder: Path,
    name: str,
    soc: Soc,
    *,
    vtcm_mb: int | None = None,
    report: Callable[[str], None] = lambda model: None,
) -> Compiled:
    """Compile `models` (graph name -> file) for `soc` into `folder`/`name`.bin, shared if there are several.
    Each graph's wrapper is named after it.

    Raises ExportError if the NPU refuses an operator (by name), if the binary is too large, or if the
    vendor's library fails or crashes; then nothing is left in `folder`.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".compile-") as scratch:
        wrappers = [Path(scratch) / f"{graph}.onnx" for graph in models]
        options = {"soc_model": str(soc.soc_model)}
        if vtcm_mb is not None:
            options["vtcm_mb"] = str(vtcm_mb)
        job = {
            "graphs": [
                {"model": str(model), "wrapper": str(wrapper)}
                for model, wrapper in zip(models.values(), wrappers, strict=True)
            ],
            "shared": len(models) > 1,
            "options": options,
        }
        seconds, peak = _run(job, soc, report)
        for wrapper in wrappers:
            check_whole(wrapper)
        (binary,) = Path(scratch).glob("*.bin")
        size = binary.stat().st_size
        if size > BINARY_LIMIT:
            raise ExportError(
                f"the binary {name} has {size / 1e9:.2f} GB, a context binary holds at most 2",
                "split the model with a smaller --part-size",
            )
        graphs = tuple(rewrite(wrapper, f"{name}.bin") for wrapper in wrappers)
        names = [graph.graph for graph in graphs]
        if len(set(names)) != len(names):
            raise ExportError(f"two graphs of {name} have the same name inside the binary")
        binary.rename(folder / f"{name}.bin")
        kept = [wrapper.rename(folder / wrapper.name) for wrapper in wrappers]
    return Compiled(folder / f"{name}.bin", tuple(kept), graphs, seconds, peak)


def _run(job: dict[str, Any], soc: Soc, report: Callable[[str], None]) -> tuple[float, int]:
    """Seconds and peak bytes of the compiling process; ExportError with its complaint if it fails."""
    ours, theirs = os.pipe()
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            [sys.executable, "-m", "hexgraft.export.htp.compiler", str(theirs)],
            pass_fds=(theirs,),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                    stdin.write(json.dumps(job).encode())
            with os.fdopen(ours) as answers:
                return _follow(process, answers, complaints, soc, report)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def _follow(
    process: subprocess.Popen[bytes], answers: Any, complaints: Any, soc: Soc, report: Callable[[str], None]
) -> tuple[float, int]:
    seconds, current = 0.0, ""
    for line in answers:
        answer = json.loads(line)
        if "begin" in answer:
            current = Path(answer["begin"]).stem
            report(current)
        elif "done" in answer:
            seconds += answer["seconds"]
        elif "refused" in answer:
            raise rejected(onnx.NodeProto(op_type=answer["refused"], name=answer["node"]), answer["count"])
        elif "error" in answer:
            reason = answer["error"].splitlines()[0]
            raise ExportError(
                f"cannot compile {current} for {soc.title}: {reason}", "try another --precision or --soc"
            )
        elif "peak" in answer:
            return seconds, answer["peak"]
    code = process.wait()
    ended = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    said = f"; its last words: {lines[-1]}" if lines else ""
    raise ExportError(
        f"the compiler {ended} at {current or 'its start'} for {soc.title}{said}",
        "run the same command again, it goes on from here; if memory ran out, use a smaller --part-size",
    )
