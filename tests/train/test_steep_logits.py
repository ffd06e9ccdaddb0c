"""Heads of targets that scale or cap their logits: what is exported says how likely tokens are as it was
trained to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from families import save_family
from tensors import whole

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import HeadCheckpoint

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hexgraft.export.train.begun_head import begun_head, open_begun  # noqa: E402
from hexgraft.export.train.dataset import Dataset, Text  # noqa: E402
from hexgraft.export.train.job import Job  # noqa: E402
from hexgraft.export.train.kinds import HeadDraft  # noqa: E402
from hexgraft.export.train.run import TrainingRun  # noqa: E402
from hexgraft.export.train.torch_graph import TorchGraph  # noqa: E402
from hexgraft.export.train.trainer import TrainOptions, feature_scale  # noqa: E402
from hexgraft.export.train.work import Work  # noqa: E402
from hexgraft.export.train.workers import Workers  # noqa: E402


@pytest.mark.parametrize("family", ["llama2", "granite", "gemma2"])
def test_a_head_is_as_sure_in_a_bundle_as_it_was_trained_to_be(tmp_path: Path, family: str) -> None:
    checkpoint = open_checkpoint(save_family(tmp_path / "target", family))
    options = ExportOptions((1, 8), 128)
    export_bundle(checkpoint, tmp_path / "bundle", options=options, report=lambda step: None)
    bundle = open_bundle(tmp_path / "bundle")
    graph = TorchGraph(bundle, dtype=torch.float32)
    rng, tokens = np.random.default_rng(0), np.arange(64)
    states = rng.normal(size=(8, 4, 64)).astype(np.float16)
    data = Dataset([Text(np.arange(9, dtype=np.int32), states, 3)], graph, tokens)
    job = Job(rows=64, train=TrainOptions(low_precision=False))
    plan = job.plan(4, 128 * 4)
    draft = HeadDraft(graph, bundle, data, tokens, plan.features, 0, None)
    run = TrainingRun(
        draft, data, data, tokens, Work(tmp_path / "w", "", plan, ""), graph, job, Workers(), waves=1
    )
    # Caps bend small logits next to nothing: training is to see them as steep as the target makes them.
    small = torch.from_numpy(rng.normal(size=(5, 64)).astype(np.float32)) * 1e-3
    assert torch.allclose(small @ run.head.t(), graph.logits(small)[:, :64], rtol=1e-3, atol=1e-6)

    draft.write(tmp_path / "head", {})
    head = HeadCheckpoint(tmp_path / "head", checkpoint)
    norm, rows = (whole(head, name) for name in ("norm", "head"))
    state = rng.normal(size=(5, 64)).astype(np.float32)
    normed = state / np.sqrt((state**2).mean(-1, keepdims=True) + 1e-6) * norm
    with torch.no_grad():
        trained = (draft.net.norm(torch.from_numpy(state)) @ run.head.t()).numpy()
        np.testing.assert_allclose(normed @ rows.T, trained, rtol=1e-2, atol=1e-2 * np.abs(trained).max())
        again = begun_head(open_begun(tmp_path / "head", bundle.target), feature_scale(data), graph.slope)
        assert torch.allclose(again.norm.weight, draft.net.norm.weight, rtol=1e-2)
