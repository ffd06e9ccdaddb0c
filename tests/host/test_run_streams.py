"""`hexgraft run` as a process: Ctrl-C, a reader that goes away, and streams that are full or closed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command import at_terminal, hexgraft, spawn

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


TREES = ("--max-tokens", "12", "--show-tree")


def test_trees_and_text_that_go_to_one_place_do_not_mix(bundle: Path, tmp_path: Path) -> None:
    """The trees come as they are drawn, then the whole text."""
    words = ("run", bundle, "-p", PROMPT, *TREES)
    apart = hexgraft(*words)
    trees, figures = apart.stderr.rsplit("\n", 2)[:2]
    shown, _ = at_terminal(*words, columns=400, NO_COLOR="1")
    assert trees + "\n\n" + apart.stdout + figures.split(",")[0] in shown
    together = tmp_path / "together"
    with together.open("wb") as file:
        assert spawn(*words, stdout=file, stderr=file).wait(timeout=300) == 0
    assert together.read_text().startswith(trees + "\n\n" + apart.stdout + figures.split(",")[0])


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_text_of_its_own_comes_as_it_is_decoded(bundle: Path, stream: str) -> None:
    words = ("run", bundle, "-p", PROMPT, *TREES)
    text = hexgraft(*words).stdout
    shown, beside = at_terminal(*words, streams=[stream], NO_COLOR="1")  # type: ignore[list-item]
    assert (shown if stream == "stdout" else beside.decode()) == text


def test_trees_with_json_are_the_only_thing_beside_it(bundle: Path, tmp_path: Path) -> None:
    together = tmp_path / "together"
    with together.open("wb") as file:
        words = ("run", bundle, "-p", PROMPT, *TREES, "--json")
        assert spawn(*words, stdout=file, stderr=file).wait(timeout=300) == 0
    trees, found = together.read_text().split("\n{\n")
    assert "at position" in trees
    assert json.loads("{" + found)["finish"] == "max-tokens"
