"""Weights of a Hugging Face folder in several files: read as one, by an index that is checked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tensors import whole
from tiny import read_tiny_weights, save_weights, write_tiny_hf

from hexgraft.models.config import tensor_shapes
from hexgraft.models.errors import CheckpointError
from hexgraft.models.hf_checkpoint import HfCheckpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_hf(tmp_path / "model")


def shard(folder: Path) -> Path:
    """Cut the folder's weights into two shards with an index."""
    weights = read_tiny_weights(folder)
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[:11], "model-00002-of-00002.safetensors": names[11:]}
    for file, members in parts.items():
        save_weights(folder / file, {name: weights[name] for name in members})
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, members in parts.items() for name in members}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def test_shards_read_as_one_file(folder: Path) -> None:
    single = HfCheckpoint(folder)
    expected = {name: whole(single, name) for name in tensor_shapes(single.config)}
    shard(folder)
    sharded = HfCheckpoint(folder)
    for name, array in expected.items():
        np.testing.assert_array_equal(whole(sharded, name), array)


@pytest.mark.parametrize("gone", [True, False])
def test_a_single_file_counts_beside_the_index_of_older_shards(folder: Path, gone: bool) -> None:
    """Shards joined in place, or a model trained on and saved where the shards of the first lay."""
    shard(folder)
    write_tiny_hf(folder, seed=5)
    if gone:
        for file in folder.glob("model-*.safetensors"):
            file.unlink()
    expected = read_tiny_weights(folder)["model.norm.weight"]
    np.testing.assert_array_equal(whole(HfCheckpoint(folder), "norm"), expected)


@pytest.mark.parametrize("target", ["../model.safetensors", "/etc/passwd", "a/b", "..", "", "x\x00y", "a\\b"])
def test_index_may_not_leave_the_folder(folder: Path, target: str) -> None:
    index = shard(folder)
    weights = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": weights | {"model.norm.weight": target}}))
    with pytest.raises(CheckpointError, match="not a plain file name"):
        HfCheckpoint(folder)


def test_damaged_shards_are_named(folder: Path) -> None:
    index = shard(folder)
    second = folder / "model-00002-of-00002.safetensors"
    data = second.read_bytes()
    second.write_bytes(data[:-8])
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors is truncated"):
        HfCheckpoint(folder)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002.safetensors is missing"):
        HfCheckpoint(folder)
    second.write_bytes(data)
    weights = json.loads(index.read_text())["weight_map"]
    swapped = {"model.norm.weight": "model-00001-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": weights | swapped}))
    with pytest.raises(CheckpointError, match="where the index puts it"):
        HfCheckpoint(folder)
