"""What a training is refused for is said before anything is written for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command import error_of, hexgraft
from pair import write_pair
from tiny import write_tiny_hf

pytest.importorskip("torch")

import torch

from hexgraft.export.train.checks import check_job
from hexgraft.export.train.generate import Plan
from hexgraft.export.train.job import Job
from hexgraft.export.train.work import Work
from hexgraft.export.train.workers import Workers
from hexgraft.host.bundle import open_bundle
from hexgraft.host.manifest import VENDOR_LAYOUT
from hexgraft.models.errors import HexgraftError, UsageError

SMALL = ["--tokens", "600", "--texts", "24", "--new-tokens", "40", "--threads", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    write_pair(folder, layers=4)
    return folder


@pytest.mark.parametrize("target", ["target-checkpoint", "bundle"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab", "4000"], "--vocab 4000 is more than the 320 tokens of the target"),
        (["--kind", "small", "--layers", "9"], "9 layers of a target of 4 are no small draft of it"),
        (["--layers", "2"], "--kind head has no use for --layers"),
        (["--kind", "small", "--vocab", "64"], "--kind small has no use for --vocab"),
        (["--kind", "small", "--unroll", "3"], "--kind small has no use for --unroll"),
        (["--vocab", "64", "--tokens", "20"], "20 tokens of text are too few to train a draft on"),
        (
            ["--vocab", "64", "--new-tokens", "100000"],
            "answers of 100000 tokens leave no room for prompts in a context of ",
        ),
        (["--vocab", "64", "--tokens", "10000000000000"], "the texts and their states take up to "),
    ],
)
def test_nothing_is_left_of_what_is_refused(
    folder: Path, tmp_path: Path, target: str, arguments: Sequence[str], message: str
) -> None:
    done = hexgraft("train-draft", folder / target, "-o", tmp_path / "draft", *SMALL, *arguments)
    assert done.exit_code == 2
    assert error_of(done)[0].startswith(message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", ["-1", "4294967296"])
def test_seeds_that_numpy_or_torch_would_not_take(tmp_path: Path, seed: str) -> None:
    done = hexgraft("train-draft", tmp_path, "-o", tmp_path / "draft", "--seed", seed)
    assert done.exit_code == 2
    assert "--seed" in error_of(done)[0]


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--cpu-precision", "w8", "its graph for the CPU is w8"),
        ("--cpu-attention", "fused", "its attention is fused"),
    ],
)
def test_bundles_whose_graph_torch_does_not_know(
    folder: Path, tmp_path: Path, option: str, value: str, what: str
) -> None:
    packed = tmp_path / "packed"
    checkpoint = folder / "target-checkpoint"
    done = hexgraft("export", checkpoint, "-o", packed, option, value)
    assert done.exit_code == 0, done.output
    done = hexgraft("train-draft", packed, "-o", tmp_path / "draft", *SMALL, "--vocab", "64")
    assert done.exit_code == 2
    message, hint = error_of(done)
    assert message == f"target-checkpoint cannot be trained for in this bundle: {what}"
    assert hint.startswith("give the checkpoint it was made of")
    assert [file.name for file in tmp_path.iterdir()] == ["packed"]


def test_bundles_of_the_vendor_s_graphs(folder: Path) -> None:
    job = Job(rows=64)
    model = open_bundle(folder / "bundle").target
    model.kv_layout = VENDOR_LAYOUT
    with pytest.raises(UsageError, match="its graphs are the vendor's"):
        check_job(model, job, folder / "work", (0, 1))
    model = open_bundle(folder / "bundle").target
    model.graphs = []
    with pytest.raises(UsageError, match="it has none for the CPU"):
        check_job(model, job, folder / "work", (0, 1))


def test_a_target_too_flat_for_a_head(tmp_path: Path) -> None:
    target = write_pair(tmp_path / "pair", noise=None, layers=3)
    message, hint = error_of(hexgraft("train-draft", target, "-o", tmp_path / "draft", *SMALL))
    assert message == "a target of 3 layers has not the three states that a head reads"
    assert hint == "use --kind small --layers 2"


def test_texts_of_another_training_are_told_apart(tmp_path: Path) -> None:
    first = Plan(0, (1, 2, 3), 24, 40, 320, ("one", "two"))
    Work(tmp_path / "w", "a" * 64, first, "")
    Work(tmp_path / "w", "a" * 64, first, "")

    def differences(target: str, plan: Plan) -> str:
        with pytest.raises(UsageError) as caught:
            Work(tmp_path / "w", target, plan, "")
        return caught.value.message.split("another training: ")[1]

    assert differences("b" * 64, first) == "the target's graph is aaaaaaaaaaaa there and bbbbbbbbbbbb here"
    other = differences("a" * 64, Plan(1, (), 24, 48, 320, ("one",)))
    assert other.split("; ")[:3] == [
        "--seed is 0 there and 1 here",
        "what a draft reads (--kind) is layers 1, 2, 3 there and nothing here",
        "--new-tokens is 40 there and 48 here",
    ]
    assert other.split("; ")[3].startswith("--prompts is 2 prompts (")
    assert differences("a" * 64, Plan(0, (1, 2, 3), 24, 40, 320)).endswith(" there and nothing here")

    plan = tmp_path / "w" / "plan.json"
    plan.write_text("{")
    assert differences("a" * 64, first) == "its plan.json cannot be read"
    plan.write_text(json.dumps({"seed": 0}))
    assert differences("a" * 64, first).startswith("the target's graph is unknown there and aaaa")


def test_a_folder_with_another_target_s_bundle(folder: Path, tmp_path: Path) -> None:
    options = ["-o", tmp_path / "draft", "--work", tmp_path / "w", *SMALL, "--vocab", "64"]
    write = ["--shard", "0/1"]
    assert hexgraft("train-draft", folder / "target-checkpoint", *options, *write).exit_code == 0
    done = hexgraft("train-draft", folder / "draft-checkpoint", *options, *write)
    assert done.exit_code == 2
    message, hint = error_of(done)
    assert "is a bundle of target-checkpoint (" in message
    assert "not of draft-checkpoint (" in message
    assert hint == "name another folder with --work"


def test_a_target_that_was_trained_on_since(tmp_path: Path) -> None:
    """Neither its bundle nor the text it wrote then is taken for its own; a copy elsewhere is the same."""
    options = ["-o", tmp_path / "draft", "--work", tmp_path / "w", *SMALL, "--vocab", "64", "--shard", "0/1"]
    target = write_tiny_hf(tmp_path / "m", layers=4)
    assert hexgraft("train-draft", target, *options).exit_code == 0
    copy = shutil.copytree(target, tmp_path / "elsewhere" / "m", copy_function=shutil.copyfile)
    assert hexgraft("train-draft", copy, *options).exit_code == 0
    write_tiny_hf(target, layers=4, seed=7)
    done = hexgraft("train-draft", target, *options)
    assert done.exit_code == 2
    message, hint = error_of(done)
    assert message.startswith(f"{target} has other weights, or another config.json, than when ")
    assert hint == f"name another folder with --work, or begin anew: rm -r {tmp_path / 'w'}"


def test_a_bundle_of_other_weights_under_the_same_name(tmp_path: Path) -> None:
    options = ["-o", tmp_path / "draft", "--work", tmp_path / "w", *SMALL, "--vocab", "64", "--shard", "0/1"]
    for seed, code in ((0, 0), (0, 0), (7, 2)):
        target = write_tiny_hf(tmp_path / "m", layers=4, seed=seed)
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        assert hexgraft("export", target, "-o", tmp_path / "b").exit_code == 0
        done = hexgraft("train-draft", tmp_path / "b", *options)
        assert done.exit_code == code, done.output
    assert "holds text of another training: the target's weights file is " in error_of(done)[0]


def test_plans_that_do_not_say_what_weights_they_are_for(tmp_path: Path) -> None:
    plan = Plan(0, (1, 2, 3))
    Work(tmp_path, "a" * 64, plan, "b" * 64)
    facts = json.loads((tmp_path / "plan.json").read_text())
    del facts["weights"]
    (tmp_path / "plan.json").write_text(json.dumps(facts))
    Work(tmp_path, "a" * 64, plan, "c" * 64)


@pytest.mark.parametrize("file", ["bundle.json", "target/model.weights"])
def test_a_damaged_bundle_in_the_work_folder(folder: Path, tmp_path: Path, file: str) -> None:
    options = ["-o", tmp_path / "draft", "--work", tmp_path / "w", *SMALL, "--vocab", "64", "--shard", "0/1"]
    assert hexgraft("train-draft", folder / "target-checkpoint", *options).exit_code == 0
    damaged = tmp_path / "w" / "target" / file
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(b"{" if file == "bundle.json" else data)
    message, hint = error_of(hexgraft("train-draft", folder / "target-checkpoint", *options))
    assert str(damaged) in message
    assert hint == f"remove it and run again, which makes it anew: rm -r {tmp_path / 'w' / 'target'}"


def test_a_bundle_that_another_run_wrote_meanwhile(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = import_module("hexgraft.host.cli.train_draft")
    export = command.export_bundle

    def slower(*arguments: Any, **options: Any) -> None:
        export(*arguments, **options)
        export(*arguments, **options)

    monkeypatch.setattr(command, "export_bundle", slower)
    options = ["--work", tmp_path / "w", *SMALL, "--vocab", "64", "--shard", "0/1"]
    done = hexgraft("train-draft", folder / "target-checkpoint", "-o", tmp_path / "draft", *options)
    assert done.exit_code == 0, done.output


def test_a_process_that_has_ended_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: object) -> None:
        raise RuntimeError("Connection closed by peer")

    workers = Workers()
    workers.count = 2
    monkeypatch.setattr("torch.distributed.all_reduce", gone)
    monkeypatch.setattr("torch.distributed.barrier", gone)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    for together in (
        lambda: workers.any(True),
        lambda: workers.least(3),
        workers.wait,
        lambda: workers.sum_gradients([weight]),
    ):
        with pytest.raises(HexgraftError, match="another process of this training has ended"):
            together()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two' in the environment, not a number"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2 and WORLD_SIZE 2"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE is 2, but torchrun did not start this"),
    ],
)
def test_an_environment_that_torchrun_did_not_make(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        Workers()
    assert caught.value.message == message
    assert caught.value.hint == "start it with torchrun, or alone: unset RANK WORLD_SIZE"


def test_processes_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(*arguments: object) -> None:
        raise RuntimeError("Connection reset by peer")

    monkeypatch.setattr("torch.distributed.init_process_group", alone)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        HexgraftError, match="the processes of this training do not find one another"
    ) as caught:
        Workers()
    assert caught.value.hint == "start all of them again: they go on where they were"
