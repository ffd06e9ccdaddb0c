"""The `hexgraft` command as tests call it: in this process, or as one of its own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from click.testing import CliRunner, Result

from hexgraft.host.cli.main import main


class _Program:
    """Lets click's runner call the whole program, errors and exit codes included."""

    name = "hexgraft"

    def main(self, args: Any, **ignored: Any) -> None:
        main(list(args))


def hexgraft(*arguments: str | Path | float, input: str | bytes | None = None) -> Result:
    """Run a command; `input` is standard input, which is no terminal."""
    return CliRunner().invoke(_Program(), [str(a) for a in arguments], input=input)  # type: ignore[arg-type]


def spawn(*arguments: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command as a process, with pipes for its three streams unless `options` say otherwise."""
    code = "from hexgraft.host.cli.main import main; main()"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TERM": "dumb"}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, **{**pipes, **options}
    )


def at_terminal(
    *arguments: str | Path,
    columns: int = 80,
    streams: Sequence[Literal["stdout", "stderr"]] = ("stdout", "stderr"),
    **environment: str,
) -> tuple[str, bytes]:
    """Run a command of which `streams` are one terminal: what it showed, and what came out of a pipe
    beside."""
    ours, theirs = pty.openpty()
    environment = {"TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": ""} | environment
    code = "from hexgraft.host.cli.main import main; main()"
    ends: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        **ends | dict.fromkeys(streams, theirs),
    ) as process:
        os.close(theirs)
        shown = bytearray()
        with suppress(OSError):  # the other end is gone
            while piece := os.read(ours, 4096):
                shown.extend(piece)
        beside = b"".join(stream.read() for stream in (process.stdout, process.stderr) if stream)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n"), beside


def error_of(result: Result) -> tuple[str, str]:
    """Message and hint of a command that failed in words: one sentence each, and nothing on stdout."""
    assert result.exit_code != 0
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 3, result.stderr
    assert lines[0].startswith("error: ")
    assert lines[1] == ""
    assert lines[2].startswith("hint: ")
    return lines[0].removeprefix("error: "), lines[2].removeprefix("hint: ")


def last_error_of(result: Result) -> tuple[str, str]:
    """Message and hint of a command that said other things first."""
    assert result.exit_code != 0
    assert "Traceback" not in result.stderr
    said = result.stderr.split("error: ", 1)[1]
    message, hint = said.split("\n\nhint: ")
    return message.strip(), hint.strip()
