"""A head trained end to end on a tiny target: resumed, shared among processes, refused where it cannot be."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import error_of, hexgraft, last_error_of
from pair import write_pair
from safetensors.numpy import load_file
from training import SMALL, run

from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.drafters.static import Static
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import HeadCheckpoint

torch = pytest.importorskip("torch")

from hexgraft.export.train import run as run_module  # noqa: E402
from hexgraft.export.train.head_net import HeadNet  # noqa: E402
from hexgraft.export.train.job import TrainingJob  # noqa: E402
from hexgraft.export.train.trainer import Trainer  # noqa: E402

TOLERANCE = 1e-4
"""Of the mean loss, relative, between a run and the same one resumed, or shared by two processes."""


def trained(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def whole(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    output = tmp_path_factory.mktemp("whole") / "head"
    return output, trained(target, "-o", output, *SMALL)


def test_a_head_comes_out_that_export_takes(target: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    output, report = whole
    losses = report["losses"]  # of four epochs, of which the last two sum those of two steps
    assert losses[len(losses) // 2 - 1] < 0.95 * losses[0]
    assert len(report["chain_when_measured"]) == len(report["measured_after_steps"]) == 4
    assert report["data"]["written"] > 400
    head = HeadCheckpoint(output, open_checkpoint(target.parent / "target-checkpoint"))
    assert head.config.features == (1, 2, 2)
    assert head.config.rows == 64
    assert head.lent == {"embed"}
    tensors = load_file(output / "model.safetensors")
    assert tensors["fc.weight"].dtype == np.float16
    assert "lm_head.weight" not in tensors


def test_its_acceptance_table_goes_into_the_bundle(
    target: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    checkpoint = target.parent / "target-checkpoint"
    done = hexgraft("export", checkpoint, "-o", tmp_path / "b", "--draft", whole[0], "--context", "256")
    assert done.exit_code == 0, done.output
    bundle = open_bundle(tmp_path / "b")
    table = whole[1]["acceptance_by_depth_and_rank"]
    assert bundle.model("draft").acceptance == table
    static = make_drafter("static", bundle, lambda: CpuSession(bundle, "draft", threads=1))
    assert isinstance(static, Static)
    assert list(static._table.at(1)) == table[1]

    shutil.copytree(whole[0], tmp_path / "bad")
    (tmp_path / "bad" / "acceptance.json").write_text('{"by_depth_and_rank": [[0.5, 1.5]]}')
    done = hexgraft(
        "export", checkpoint, "-o", tmp_path / "c", "--draft", tmp_path / "bad", "--context", "256"
    )
    assert "is not a table of rates from 0 to 1" in error_of(done)[0]


def test_a_stopped_run_goes_on_to_the_same_loss(
    target: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer._step
    steps = 0

    def failing(self: Any, numbers: list[int], used: float) -> float:
        nonlocal steps
        steps += 1
        if steps > len(whole[1]["losses"]) // 2 + 1:
            raise KeyboardInterrupt
        return step(self, numbers, used)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", failing)
        assert run(target, "-o", tmp_path / "head", *SMALL).exit_code == 130
    report = trained(target, "-o", tmp_path / "head", *SMALL)
    assert report["losses"] == pytest.approx(whole[1]["losses"], rel=TOLERANCE)
    assert not (tmp_path / "head.work" / "checkpoint.pt").exists()


def test_a_stopped_run_is_not_begun_anew_by_another_option(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it end in nothing where its draft was removed, or is to lie elsewhere."""
    real, measured = run_module.outlook, count()

    def stopped(*arguments: Any) -> Any:
        if next(measured) == 1:
            raise KeyboardInterrupt
        return real(*arguments)

    work = ("--work", tmp_path / "texts")
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "outlook", stopped)
        assert run(target, "-o", tmp_path / "head", *work, *SMALL).exit_code == 130
    done = run(target, "-o", tmp_path / "head", *work, *SMALL, "--epochs", "9")
    message, hint = last_error_of(done)
    assert done.exit_code == 2
    assert message.endswith("begun otherwise: `epochs` is 4 there and 9 here")
    assert hint.endswith(f"rm {tmp_path / 'texts' / 'checkpoint.pt'}")

    # No later outlook is better than the one whose draft is gone.
    bests = count()
    monkeypatch.setattr(
        run_module, "outlook", lambda *a: replace(real(*a), tokens_per_round=1.0 - 0.1 * next(bests))
    )
    report = trained(target, "-o", tmp_path / "other", *work, *SMALL)
    assert report["chain"] == 1.0
    assert (tmp_path / "other" / "model.safetensors").is_file()
    assert report["measured_after_steps"][0] > report["steps"] // 4


def test_a_training_plans_for_the_time_it_has(
    target: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More epochs are asked for than there is time: one step alone at first, the rate low at the end."""
    work = shutil.copytree(whole[0].with_name("head.work"), tmp_path / "head.work")
    asked, rates, unrolled = count(), [], []
    monkeypatch.setattr(TrainingJob, "_left", lambda job: 600.0 - 20 * next(asked))
    rate, unroll = Trainer._rate, HeadNet.unroll
    monkeypatch.setattr(Trainer, "_rate", lambda *a: rates.append(rate(*a)) or rates[-1])
    monkeypatch.setattr(
        HeadNet, "unroll", lambda n, b, e, steps: unrolled.append(steps) or unroll(n, b, e, steps)
    )
    report = trained(
        target, "-o", tmp_path / "head", "--work", work, *SMALL, "--epochs", "90", "--minutes", "10"
    )
    assert 25 <= report["steps"] <= 30
    assert max(rates) > 10 * rates[-1]
    assert rates == sorted(rates[: rates.index(max(rates))]) + sorted(
        rates[rates.index(max(rates)) :], reverse=True
    )
    steps = [n for n in unrolled if n <= 2]  # what is measured on held-out texts goes further
    assert steps[:8] == [1] * 8  # of the 14 steps of two epochs
    assert steps[11:] == [2] * (report["steps"] - 11)
    assert report["measured_after_steps"][-1] == report["steps"]
    assert len(report["measured_after_steps"]) >= 8


def test_a_run_killed_before_its_last_measurement_goes_on(
    target: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = shutil.copytree(whole[0].with_name("head.work"), tmp_path / "head.work")
    command = ("-o", tmp_path / "head", "--work", work, *SMALL, "--minutes", "10")
    monkeypatch.setattr(run_module, "_SAVE_STEPS", 1)
    monkeypatch.setattr(run_module, "_clock", lambda left, before: lambda: 1.0)

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "outlook", killed)
        assert run(target, *command).exit_code == 130
    assert trained(target, *command)["measured_after_steps"] == [1]


def test_shards_of_two_processes_merge_and_train_to_the_same_loss(
    target: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    work = tmp_path / "texts"
    for shard in ("1/2", "0/2"):
        done = run(target, "-o", tmp_path / "head", "--work", work, "--shard", shard, *SMALL)
        assert done.exit_code == 0, done.output
    one = sorted((whole[0].with_name("head.work") / "waves").iterdir())
    assert [file.read_bytes() for file in sorted((work / "waves").iterdir())] == [f.read_bytes() for f in one]
    program = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    # A start in some hundreds ends in an abort inside gloo; torchrun's own remedy is another start, which
    # goes on where the first one was. What may not happen is that it counts as done, or ends elsewhere.
    program += ["--max-restarts", "2"]
    program += ["-m", "hexgraft.host.cli", "train-draft", str(target), "-o", str(tmp_path / "head")]
    done2 = subprocess.run(
        [*program, "--work", str(work), *SMALL],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONFAULTHANDLER": "1"},
    )
    assert done2.returncode == 0, done2.stderr
    report = json.loads((tmp_path / "head" / "report.json").read_text())
    assert report["losses"] == pytest.approx(whole[1]["losses"], rel=TOLERANCE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab", "4000"], "--vocab 4000 is more than the 320 tokens of the target"),
        (["--tokens", "20", "--texts", "2", "--new-tokens", "6"], "too few to train a draft on"),
        (["--shard", "3/2"], "--shard '3/2' is not of the form I/N"),
        (["--prompts", "/nowhere"], "cannot read /nowhere: No such file or directory"),
    ],
)
def test_what_cannot_be_trained(target: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run(target, "-o", tmp_path / "head", *SMALL, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "hint:" in done.stderr


def test_no_other_folder_is_written_into(target: Path, tmp_path: Path) -> None:
    done = run(target, "-o", target, "--work", tmp_path / "work", *SMALL)
    assert done.exit_code == 2
    assert "exists already and is no draft" in done.stderr
    assert "hint:" in done.stderr
    assert not (tmp_path / "work").exists()


def test_a_full_disk_is_said_before_and_while_writing(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("hexgraft.export.train.checks.free_bytes", lambda folder: 1000)
        done = run(target, "-o", tmp_path / "head", *SMALL)
        assert done.exit_code == 2
        assert " 0 MB free" in done.stderr

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        done = run(target, "-o", tmp_path / "head2", *SMALL)
    assert done.exit_code == 1
    assert "no space left for" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_trained_head_drafts_what_an_untrained_one_does_not(tmp_path: Path, family: str) -> None:
    """From a checkpoint to tokens a round of the real decode loop, for two kinds of targets."""
    write_pair(tmp_path, noise=None, family=family, layers=5)
    checkpoint = tmp_path / "target-checkpoint"
    figures = {}
    for epochs, name in ((1, "untrained"), (24, "trained")):
        options = [
            "--tokens",
            "12000",
            "--texts",
            "64",
            "--new-tokens",
            "60",
            "--vocab",
            "256",
            "--unroll",
            "2",
        ]
        options += ["--epochs", str(epochs), "--batch", "4096" if epochs > 1 else "1000000"]
        head = tmp_path / name
        done = hexgraft(
            "train-draft", checkpoint, "-o", head, *options, "--work", tmp_path / "w", "--threads", "1"
        )
        assert done.exit_code == 0, done.output
        bundle = tmp_path / f"{name}-bundle"
        done = hexgraft("export", checkpoint, "-o", bundle, "--draft", head, "--context", "512")
        assert done.exit_code == 0, done.output
        done = hexgraft(
            "lab", bundle, "--drafters", "chain", "--tree-sizes", "4", "--max-tokens", "48", "--json"
        )
        assert done.exit_code == 0, done.output
        rows = json.loads(done.stdout)["rows"]
        figures[name] = next(row for row in rows if row["category"] == "all")["tokens_per_round"]
    assert figures["trained"] > figures["untrained"] + 0.1
