"""A small draft model: some of the target's layers, which read as a model of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import error_of, hexgraft
from pair import make_pair, write_pair

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.drafters.static import Static
from hexgraft.host.session import causal
from hexgraft.models.checkpoint import open_checkpoint

torch = pytest.importorskip("torch")

from hexgraft.export.train.dataset import Batch  # noqa: E402
from hexgraft.export.train.small_file import write_small  # noqa: E402
from hexgraft.export.train.small_net import initial_small  # noqa: E402
from hexgraft.export.train.torch_graph import TorchGraph  # noqa: E402

IDS = [5, 9, 40, 41, 7, 100, 200, 17, 33]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_written_computes_what_was_trained(tmp_path: Path, family: str, tied: bool) -> None:
    bundle = make_pair(tmp_path / "target", noise=None, family=family, layers=5, tied=tied)
    graph = TorchGraph(bundle, dtype=torch.float32)
    net = initial_small(graph, 3)
    write_small(tmp_path / "small", net, graph, bundle, {"recipe.json": {"seed": 1}})
    checkpoint = open_checkpoint(tmp_path / "small")
    assert checkpoint.config.layers == 3
    target = open_checkpoint(tmp_path / "target" / "target-checkpoint")
    options = ExportOptions((1, 16), 256)
    export_bundle(target, tmp_path / "pair", draft=checkpoint, options=options, report=lambda step: None)
    session = CpuSession(open_bundle(tmp_path / "pair"), "draft", threads=1)
    rows = session.forward(IDS, range(len(IDS)), causal(0, len(IDS)))
    nothing = torch.zeros(1, len(IDS), 1)
    batch = Batch(
        torch.tensor([[*IDS, 0]]), nothing[..., None], nothing, nothing.long(), nothing, nothing[..., 0]
    )
    with torch.no_grad():
        (states,) = net.unroll(batch, graph.weight("embed"), 1)
        logits = graph.logits(net.norm(states))[0].numpy()
    found = np.stack([rows.logits(row) for row in range(1, len(IDS))])
    assert np.abs(found - logits).max() < 0.02 * np.abs(logits).max()  # float16 weights
    assert (found.argmax(-1) == logits.argmax(-1)).mean() > 0.7


def test_train_draft_makes_one_that_export_takes(tmp_path: Path) -> None:
    target = write_pair(tmp_path, noise=None, family="qwen2", layers=5)
    small: list[Any] = [
        "--kind",
        "small",
        "--layers",
        "3",
        "--tokens",
        "600",
        "--texts",
        "24",
        "--epochs",
        "3",
    ]
    small += ["--new-tokens", "40", "--batch", "512", "--threads", "1", "--full-precision", "--json"]
    done = hexgraft("train-draft", target, "-o", tmp_path / "small", *small)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["losses"][-1] < report["losses"][0]
    options = ["--draft", tmp_path / "small", "--context", "256"]
    done = hexgraft("export", tmp_path / "target-checkpoint", "-o", tmp_path / "pair", *options)
    assert done.exit_code == 0, done.output
    bundle = open_bundle(tmp_path / "pair")
    table = bundle.model("draft").acceptance
    assert table == report["acceptance_by_depth_and_rank"]
    static = make_drafter("static", bundle, lambda: CpuSession(bundle, "draft", threads=1))
    assert isinstance(static, Static)
    assert list(static._table.at(1)) == table[1]

    (tmp_path / "small" / "acceptance.json").write_text('{"by_depth_and_rank": [[0.5, 1.5]]}')
    done = hexgraft("export", tmp_path / "target-checkpoint", "-o", tmp_path / "other", *options)
    assert "is not a table of rates from 0 to 1" in error_of(done)[0]
    assert not (tmp_path / "other").exists()


def test_layers_that_are_no_small_draft(tmp_path: Path) -> None:
    target = write_pair(tmp_path, noise=None)
    small = ["--kind", "small", "--tokens", "600", "--texts", "24", "--new-tokens", "40", "--threads", "1"]
    done = hexgraft("train-draft", target, "-o", tmp_path / "small", *small, "--layers", "3")
    message, hint = error_of(done)
    assert message == "3 layers of a target of 3 are no small draft of it"
    assert hint == "use --layers 2"
    assert list(tmp_path.glob("small*")) == [], "said before any text is written"
