"""The head that comes with hexgraft: whole, small, and of the layout that every head is read in."""

from __future__ import annotations

import json
import math

import pytest
from safetensors.numpy import load_file

from hexgraft.models.shipped_heads import SMOLLM2_HEAD, shipped_head, shipped_heads

HIDDEN, LAYERS, VOCAB = 576, 30, 49152


def test_heads_are_found_by_name() -> None:
    assert shipped_heads() == [SMOLLM2_HEAD]
    assert shipped_head("no-such-head") is None
    assert shipped_head("..") is None


def test_smollm2_head_is_whole_and_small() -> None:
    folder = shipped_head(SMOLLM2_HEAD)
    assert folder is not None
    config = json.loads((folder / "config.json").read_text())
    assert (config["hidden_size"], config["vocab_size"]) == (HIDDEN, VOCAB)
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, LAYERS // 2, LAYERS - 3]
    file = folder / "model.safetensors"
    assert file.stat().st_size <= 12e6
    tensors = load_file(file)
    assert tensors["d2t"].shape == (config["draft_vocab_size"],)
    assert all(math.isfinite(float(abs(tensor).max())) for tensor in tensors.values())


@pytest.mark.parametrize("name", ["recipe.json", "acceptance.json", "README.md"])
def test_smollm2_head_tells_where_it_is_from(name: str) -> None:
    folder = shipped_head(SMOLLM2_HEAD)
    assert folder is not None
    text = (folder / name).read_text()
    assert "smollm2" in text.lower() or "by_depth_and_rank" in text
    if name == "recipe.json":
        assert json.loads(text)["license"] == "apache-2.0"
