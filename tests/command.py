"""The `hexgraft` command as tests call it: in this process, or as one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
