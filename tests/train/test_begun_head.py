"""Training that goes on from a head, and the heads it cannot go on from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import error_of, hexgraft
from heads import write_head
from safetensors.numpy import load_file

from hexgraft.host.bundle import open_bundle

torch = pytest.importorskip("torch")

from hexgraft.export.train import run as run_module  # noqa: E402
from hexgraft.export.train.begun_head import begun_head, open_begun  # noqa: E402
from hexgraft.export.train.head_file import head_tensors  # noqa: E402

SMALL = ["--tokens", "600", "--texts", "24", "--new-tokens", "40", "--batch", "512", "--epochs", "2"]
SMALL += ["--unroll", "2", "--full-precision", "--threads", "1", "--json"]


@pytest.fixture(scope="module")
def first(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A head trained from the target's last layer, and its report."""
    output = tmp_path_factory.mktemp("first") / "head"
    done = hexgraft("train-draft", target, "-o", output, *SMALL, "--vocab", "64")
    assert done.exit_code == 0, done.output
    return output, json.loads(done.stdout)


def test_a_head_is_read_as_it_was_written(target: Path, first: tuple[Path, dict[str, Any]]) -> None:
    head = open_begun(first[0], open_bundle(target).target)
    assert head.tokens is not None
    scale = torch.linspace(0.5, 40.0, head.config.feature_size)
    again = head_tensors(begun_head(head, scale), head.tokens.astype(np.int64), 320)
    kept = load_file(first[0] / "model.safetensors")
    assert again.keys() == kept.keys()
    for name, value in kept.items():
        # `fc` is multiplied by the scale and divided by it again, in float32.
        np.testing.assert_allclose(again[name], value, rtol=1e-3 if name == "fc.weight" else 0, err_msg=name)


def test_training_goes_on_where_a_head_was(
    target: Path, first: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    work = shutil.copytree(first[0].with_name("head.work"), tmp_path / "head.work")
    done = hexgraft("train-draft", target, "-o", tmp_path / "head", *SMALL, "--from", first[0])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    before, after = first[1]["losses"], report["losses"]
    # It is unrolled from the first step on, as the other was only in its last epoch.
    last_epoch = before[len(before) // 2 :]
    assert after[0] < min(last_epoch[0], 1.1 * last_epoch[-1])
    assert min(after) < min(last_epoch)
    recipe = json.loads((tmp_path / "head" / "recipe.json").read_text())
    assert (recipe["from"], recipe["vocab"], recipe["training"]["single"]) == ("head", 64, 0)
    kept, found = (load_file(path / "model.safetensors")["d2t"] for path in (first[0], tmp_path / "head"))
    assert np.array_equal(kept, found)
    assert json.loads((first[0] / "recipe.json").read_text())["from"] is None
    assert not (work / "checkpoint.pt").exists()


def test_a_head_that_gets_no_better_stays_what_it_was(
    target: Path, first: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(first[0].with_name("head.work"), tmp_path / "head.work")
    head = shutil.copytree(first[0], tmp_path / "head")
    measure, measured = run_module.outlook, count()

    def worse_and_worse(*arguments: Any) -> Any:
        return replace(measure(*arguments), tokens_per_round=2.0 - 0.1 * next(measured))

    monkeypatch.setattr(run_module, "outlook", worse_and_worse)
    done = hexgraft("train-draft", target, "-o", head, *SMALL, "--from", head)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["measured_after_steps"][0] == 0
    assert report["chain"] == report["chain_when_measured"][0] == 2.0
    before, after = (load_file(path / "model.safetensors") for path in (first[0], head))
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-3 if name == "fc.weight" else 0, err_msg=name)


def test_heads_that_cannot_be_trained_further(target: Path, tmp_path: Path) -> None:
    """Said before any text is written."""
    checkpoint = target.parent / "target-checkpoint"
    heads = {
        "has an output matrix of its own": write_head(tmp_path / "own", checkpoint, rows=64),
        "is a head of EAGLE-1 or 2": write_head(tmp_path / "old", checkpoint, "eagle"),
        "an embed matrix of its own": write_head(tmp_path / "embed", checkpoint, rows=64, own_embed=True),
        "scales its positions": write_head(
            tmp_path / "scaled",
            checkpoint,
            rows=64,
            own_head=False,
            config={"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
    }
    for message, head in heads.items():
        done = hexgraft("train-draft", target, "-o", tmp_path / "out", *SMALL, "--from", head)
        assert (done.exit_code, message in error_of(done)[0]) == (2, True), done.output
        assert error_of(done)[1].startswith("leave out --from")
    for place in (checkpoint, tmp_path / "nowhere"):
        done = hexgraft("train-draft", target, "-o", tmp_path / "out", *SMALL, "--from", place)
        message, hint = error_of(done)
        assert (done.exit_code, message) == (2, f"there is no draft head at {place}")
        assert hint == "give a folder, an id on the hub, or one of: smollm2-135m-instruct"
    done = hexgraft("train-draft", target, "-o", tmp_path / "out", *SMALL, "--from", "smollm2-135m-instruct")
    assert "was made for a target of 49152 tokens, this one has 320" in error_of(done)[0]
    assert not [*tmp_path.glob("out*")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vocab", "64"], "keeps its tokens"),
        (["--kind", "small"], "--kind small has no use for --from"),
    ],
)
def test_options_that_a_begun_head_has_no_use_for(
    target: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    done = hexgraft("train-draft", target, "-o", tmp_path / "out", "--from", tmp_path, *options)
    assert done.exit_code == 2
    assert message in error_of(done)[0]
