"""The text a head is trained on: how much the target writes, and what a training that goes on takes of it."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command import last_error_of
from training import SMALL, run

torch = pytest.importorskip("torch")

from hexgraft.export.train import run as run_module  # noqa: E402
from hexgraft.export.train.job import TrainingJob  # noqa: E402
from hexgraft.export.train.trainer import Trainer  # noqa: E402


def without(option: str) -> list[str]:
    place = SMALL.index(option)
    return SMALL[:place] + SMALL[place + 2 :]


def clock(monkeypatch: pytest.MonkeyPatch, wave: float, minutes: float) -> None:
    """A wave takes `wave` seconds, all else none."""
    real, now = TrainingJob._wave, [60 * minutes]

    def written(job: Any, number: int, asked: Any, plan: Any, advance: Any) -> bytes:
        now[0] -= wave
        return real(job, number, asked, plan, advance)

    monkeypatch.setattr(TrainingJob, "_wave", written)
    monkeypatch.setattr(TrainingJob, "_left", lambda job: now[0])


@pytest.mark.parametrize(("tokens", "waves"), [(None, 4), ("600", 1), ("1700", 3), ("100000", 4)])
def test_text_ends_by_tokens_or_by_half_of_the_minutes(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: str | None, waves: int
) -> None:
    """Half of ten minutes hold four waves of seventy seconds; a fifth would end behind it."""
    clock(monkeypatch, 70, 10)
    words = [*without("--tokens"), *(["--tokens", tokens] if tokens else []), "--minutes", "10"]
    done = run(target, "-o", tmp_path / "head", "--shard", "0/1", *words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["waves"] == waves
    assert len([*(tmp_path / "head.work" / "waves").iterdir()]) == waves
    assert ("the time for texts is over after wave 4" in done.stderr) is (waves == 4)


def test_text_leaves_room_on_the_disk(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 1, 10)
    free = iter([10**9, 10**9, 10**9, 10**6])
    monkeypatch.setattr("hexgraft.export.train.job.free_bytes", lambda folder: next(free))
    done = run(target, "-o", tmp_path / "head", "--shard", "0/1", *without("--tokens"), "--minutes", "10")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["waves"] == 4
    assert "the disk has no room for more text after wave 4" in done.stderr


def test_a_training_begun_goes_on_with_its_text(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where time ended the text, there is time for more when the run is started again."""
    command = ("-o", tmp_path / "head", *without("--tokens"), "--minutes", "10")
    monkeypatch.setattr(run_module, "_SAVE_STEPS", 1)
    monkeypatch.setattr(run_module, "_clock", lambda left, before: lambda: min(1.0, before + 0.5))
    step, steps = Trainer._step, count()

    def stopped(*arguments: Any) -> float:
        if next(steps) == 1:
            raise KeyboardInterrupt
        return step(*arguments)

    with monkeypatch.context() as patch:
        clock(patch, 140, 10)
        patch.setattr(Trainer, "_step", stopped)
        assert run(target, *command).exit_code == 130
    assert len([*(tmp_path / "head.work" / "waves").iterdir()]) == 2
    with monkeypatch.context() as patch:
        clock(patch, 140, 10)
        done = run(target, *command)
    assert done.exit_code == 0, done.output
    assert "going on with the 2 waves of text that training was begun on" in done.stderr
    assert "going on after step 1 of" in done.stderr
    assert json.loads(done.stdout)["data"]["waves"] == 2


def test_text_of_another_seed_is_not_gone_on_with(target: Path, tmp_path: Path) -> None:
    first = ["--shard", "0/1", *SMALL]
    assert run(target, "-o", tmp_path / "head", *first).exit_code == 0
    done = run(target, "-o", tmp_path / "head", *first, "--seed", "5")
    assert done.exit_code == 2
    message, hint = last_error_of(done)
    assert message.endswith("holds text of another training: --seed is 0 there and 5 here")
    assert hint.startswith("name another folder with --work, or remove it: rm -r ")


def test_text_that_takes_all_of_the_time_leaves_none_for_a_step(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step makes a draft of no use. More time goes on with the text."""
    words = ("-o", tmp_path / "head", *without("--tokens"))
    with monkeypatch.context() as patch:
        clock(patch, 130, 2)
        done = run(target, *words, "--minutes", "2")
    assert done.exit_code == 1
    message, hint = last_error_of(done)
    assert message.startswith("the text took all of the time, ")
    assert hint.startswith("use --minutes ")
    assert not (tmp_path / "head").exists()
    texts = [file.read_bytes() for file in (tmp_path / "head.work" / "waves").iterdir()]
    assert len(texts) == 1
    with monkeypatch.context() as patch:
        clock(patch, 130, 4)
        done = run(target, *words, "--minutes", "4")
    assert done.exit_code == 0, done.output
    assert texts[0] in [file.read_bytes() for file in (tmp_path / "head.work" / "waves").iterdir()]


def test_a_training_that_ends_early_says_so(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, 1, 10)
    words = ("-o", tmp_path / "head", *SMALL, "--minutes", "10")
    for used, said in ((1.0, True), (0.2, False)):
        monkeypatch.setattr(run_module, "_clock", lambda left, before, used=used: lambda: used)
        done = run(target, *words)
        assert done.exit_code == 0, done.output
        assert ("the time was over after 1 of the " in done.stderr) is said
