"""Options that the chosen backend has no use for are refused before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import error_of, hexgraft


@pytest.mark.parametrize("command", [["bench"], ["tune"], ["lab"], ["bake"], ["run", "-p", "a"], ["chat"]])
@pytest.mark.parametrize(
    ("option", "named"),
    [
        (["--serial", "a"], "--serial"),
        (["-s", "a"], "--serial"),
        (["--root", "/data/local/tmp/a"], "--root"),
        (["--no-stay-awake"], "--no-stay-awake"),
    ],
)
def test_a_phone_s_options_need_a_phone(command: list[str], option: list[str], named: str) -> None:
    output = ["-o", "p"] if command == ["bake"] else []
    for backend in ("cpu", "runner"):
        done = hexgraft(*command, *output, "no-bundle", "--backend", backend, *option)
        assert done.exit_code == 2
        message, hint = error_of(done)
        assert message == f"--backend {backend} has no use for {named}"
        assert hint == "leave it out, or use --backend device"


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "b", "--cool-to", "40"],
        ["bench", "b", "--cool-timeout", "4"],
        ["run", "b", "-p", "a", "--reconnect", "4"],
        ["run", "b", "-p", "a", "--backend", "htp-sim", "--threads", "2"],
        ["run", "b", "-p", "a", "--backend", "htp-sim", "--provider", "cpu"],
        ["compare", "b", "-p", "a", "--with-backend", "runner", "--serial", "x"],
    ],
)
def test_other_options_without_a_use(words: list[str]) -> None:
    done = hexgraft(*words)
    assert done.exit_code == 2
    assert "has no use for --" in error_of(done)[0]


def test_what_stands_in_the_environment_is_for_other_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANDROID_SERIAL", "a-phone")
    monkeypatch.setenv("HEXGRAFT_DEVICE_ROOT", "/data/local/tmp/a")
    done = hexgraft("run", tmp_path / "nothing", "-p", "a")
    assert "has no use for" not in error_of(done)[0]


def test_one_of_two_backends_with_a_use_for_it_is_enough(tmp_path: Path) -> None:
    words = ["compare", tmp_path, "-p", "a", "--with-backend", "device", "--serial", "x"]
    assert "has no use for" not in error_of(hexgraft(*words))[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "a", "b", "--temperature", "0.8"], "two traces have no use for --temperature"),
        (
            ["tune", "b", "--profile", "snapdragon-8-elite", "--repeats", "9"],
            "--profile foretells and runs nothing: it has no use for --repeats",
        ),
        (
            ["tune", "b", "--prompts", "p", "--per-category", "3"],
            "--per-category chooses among the built-in prompts",
        ),
    ],
)
def test_options_that_another_one_makes_useless(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = hexgraft(*words)
    assert done.exit_code == 2
    assert error_of(done)[0] == message
