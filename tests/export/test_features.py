"""The features a target gives to draft heads, against the hidden states of Hugging Face transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import Rows, causal, prefill
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import CheckpointError, DecodeError
from hexgraft.models.features import eagle3_features, eagle_features

TOKENS = np.random.default_rng(3).integers(0, 320, 40).tolist()


def session_with(folder: Path, features: tuple[int, ...], checkpoint: Path) -> CpuSession:
    options = ExportOptions((1, 8, 16), 64, features)
    export_bundle(open_checkpoint(checkpoint), folder, options=options, report=lambda step: None)
    return CpuSession(open_bundle(folder))


def test_layers_are_those_of_the_published_heads() -> None:
    assert eagle3_features(32) == (2, 16, 29)
    assert eagle3_features(30) == (2, 15, 27)
    assert eagle3_features(3) == (0, 1, 2)
    assert eagle_features(32) == (32,)
    with pytest.raises(CheckpointError, match="at least 3 layers"):
        eagle3_features(2)


@pytest.mark.parametrize("features", [(2, 2, 1), (0, 3), (4,)])
def test_features_are_the_hidden_states_of_transformers(features: tuple[int, ...], tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    checkpoint = write_tiny_hf(tmp_path / "model", layers=4, tied=False)
    session = session_with(tmp_path / "bundle", features, checkpoint)
    assert session.spec.features == 64 * len(features)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        states = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    expected = np.concatenate([states[layer][0].numpy() for layer in features], axis=1)
    found: dict[int, np.ndarray] = {}

    def keep(start: int, rows: Rows) -> None:
        found[start] = rows.hiddens()
        assert (rows.hiddens([rows.count - 1, 0]) == found[start][[-1, 0]]).all()
        assert (rows.hidden(0) == found[start][0]).all()

    assert list(prefill(session, TOKENS, 0, len(TOKENS), keep))[-1] == len(TOKENS)
    assert list(found) == [0, 16, 32]
    np.testing.assert_allclose(np.concatenate(list(found.values())), expected, atol=1e-3, rtol=1e-4)


def test_a_bundle_without_features_gives_none(tmp_path: Path) -> None:
    session = session_with(tmp_path / "bundle", (), write_tiny_hf(tmp_path / "model"))
    rows = session.forward([1, 2], [0, 1], causal(0, 2))
    assert session.spec.features == 0
    with pytest.raises(DecodeError, match="no hidden output"):
        rows.hiddens()
