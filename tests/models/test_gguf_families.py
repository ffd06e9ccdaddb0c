"""GGUF files of every family equal the folders they were made of, split or whole."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, save_family
from families_gguf import write_family_gguf
from tensors import whole

from hexgraft.export.resume import export_identity
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.config import tensor_shapes
from hexgraft.models.errors import CheckpointError

# GGUF has no key for Qwen's windows, and converters refuse NoPE patterns that are not every fourth layer.
CHANGES: dict[str, dict[str, Any]] = {"smollm3": {"no_rope_layers": [1, 1, 1, 0]}}
# Gemma 2's converter leaves the scale of the scores out: it follows from head_dim.
CHANGES["gemma2"] = {"query_pre_attn_scalar": 16}
CHANGES["gemma3"] = CHANGES["gemma3-capped"] = {"query_pre_attn_scalar": 16}
NAMES = [name for name in FAMILIES if not name.startswith(("qwen2-window", "qwen3-window"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_gguf_equals_the_folder(name: str, tmp_path: Path) -> None:
    folder = save_family(tmp_path / "m", name, **CHANGES.get(name, {}))
    parts = 3 if name == "llama3" else 1
    path = write_family_gguf(folder, tmp_path / "m.gguf", parts)[0]
    theirs, ours = open_checkpoint(folder), open_checkpoint(path)
    for field in fields(ours.config):
        mine, other = getattr(ours.config, field.name), getattr(theirs.config, field.name)
        if field.name in ("family", "context_limit"):
            continue
        if field.name in ("rope", "local_rope") and mine is not None:
            np.testing.assert_allclose(mine.frequencies, other.frequencies, rtol=1e-6)
            assert mine.scale == pytest.approx(other.scale)
        elif field.name == "attention_scale":
            assert ours.config.query_scale == pytest.approx(theirs.config.query_scale)
        elif isinstance(mine, float):
            assert mine == pytest.approx(other), field.name
        else:
            assert mine == other, field.name
    assert bool(ours.config.context_limit) == bool(theirs.config.context_limit)
    for tensor in tensor_shapes(theirs.config):
        read, expected = (whole(c, tensor) for c in (ours, theirs))
        np.testing.assert_array_equal(read, expected, err_msg=tensor)


def test_a_context_that_yarn_stretches_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = save_family(tmp_path / "m", "qwen2-yarn", max_position_embeddings=64)
    (path,) = write_family_gguf(folder, tmp_path / "m.gguf")
    assert open_checkpoint(folder).config.context == open_checkpoint(path).config.context == 4 * 64


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return write_family_gguf(save_family(tmp_path / "m", "llama2"), tmp_path / "m.gguf", 3)


def test_an_export_does_not_go_on_with_another_part(parts: list[Path]) -> None:
    """A part that was downloaded again is another checkpoint to the one that a killed export was of."""
    before = export_identity(open_checkpoint(parts[0]), None, None)
    assert export_identity(open_checkpoint(parts[0]), None, None) == before
    os.utime(parts[1], (1, 1))
    assert export_identity(open_checkpoint(parts[0]), None, None) != before


def test_a_part_that_is_not_the_first_names_it(parts: list[Path]) -> None:
    with pytest.raises(CheckpointError, match="not the first part") as caught:
        open_checkpoint(parts[1])
    assert caught.value.hint == "give the first one: m-00001-of-00003.gguf"


def test_parts_that_do_not_belong_together(parts: list[Path]) -> None:
    third = parts[2].read_bytes()
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=r"m-00003-of-00003.gguf cannot be read"):
        open_checkpoint(parts[0])
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(CheckpointError, match="is not part 3 of the 3"):
        open_checkpoint(parts[0])
    parts[2].write_bytes(third[: len(third) // 2])
    with pytest.raises(CheckpointError, match="truncated"):
        open_checkpoint(parts[0])
    renamed = parts[0].rename(parts[0].with_name("first.gguf"))
    with pytest.raises(CheckpointError, match="not named as such"):
        open_checkpoint(renamed)
