"""`hexgraft run` as a process: Ctrl-C, a reader that goes away, and streams that are full or closed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import spawn

PROMPT = "the fox in the garden"


def test_ctrl_c_ends_the_text_and_keeps_it(endless: Path) -> None:
    with spawn("run", endless, "-p", PROMPT, "--plain", "--max-tokens", "100000") as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert first
    assert rest.endswith(b"\n")
    assert errors.decode().startswith("[interrupted] ")
    assert b"Traceback" not in errors


def test_ctrl_c_with_json_gives_what_there_is(endless: Path) -> None:
    with spawn(
        "run", endless, "-p", PROMPT, "--plain", "--max-tokens", "100000", "--json", "--show-tree"
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first drawn round
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    found = json.loads(out)
    assert found["finish"] == "interrupted"
    assert 0 < len(found["tokens"]) == found["stats"]["tokens"] < 8000


def test_a_reader_that_goes_away_ends_the_run_quietly(endless: Path) -> None:
    with spawn("run", endless, "-p", PROMPT, "--plain", "--max-tokens", "100000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=300)
    assert process.returncode == 1
    assert errors == b""


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_an_output_that_takes_nothing_is_said(bundle: Path, extra: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = spawn("run", bundle, "-p", PROMPT, "--max-tokens", "5", *extra, stdout=full)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert errors.decode().splitlines()[-3:] == [
        "error: the system refuses the output: No space left on device",
        "",
        "hint: free some space: `df -h` shows where",
    ]


@pytest.mark.parametrize(
    ("arguments", "closing", "code", "said"),
    [
        (("-p", PROMPT, "--max-tokens", "5"), "1>&-", 0, "[max-tokens] 5 tokens"),
        (("-",), "0<&-", 2, "error: the prompt is empty"),
    ],
)
def test_closed_streams_do_no_harm(
    bundle: Path, arguments: tuple[str, ...], closing: str, code: int, said: str
) -> None:
    program = [sys.executable, "-c", "from hexgraft.host.cli.main import main; main()"]
    command = [*program, "run", str(bundle), *arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *command], capture_output=True, text=True
    )
    assert done.returncode == code
    assert done.stderr.startswith(said)
