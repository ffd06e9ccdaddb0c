"""GPTQ and AWQ folders equal the integers they were packed from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_folders import change, write_quantised
from safetensors.numpy import save_file

from hexgraft.export.cpu.packing import Packing, pack_rows, unpack
from hexgraft.export.cpu.source import read_part
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import CheckpointError
from hexgraft.models.graph import Part
from hexgraft.models.hf_checkpoint import HfCheckpoint


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("gptq", {}),
        ("gptq", {"act_order": True}),
        ("gptq", {"group": -1}),
        ("gptq", {"bits": 8}),
        ("awq", {}),
    ],
    ids=str,
)
def test_dequantised_matrices_are_exact(
    tmp_path: Path, method: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexgraft.models.blocks.BLOCK_BYTES", 17 * 64 * 4)
    exact = write_quantised(tmp_path / "m", method, **settings)
    checkpoint = open_checkpoint(tmp_path / "m")
    for layer in range(2):
        for part, name in (("q", "self_attn.q_proj"), ("k", "self_attn.k_proj"), ("down", "mlp.down_proj")):
            blocks = list(checkpoint.blocks(f"layers.{layer}.{part}"))
            assert len(blocks) > 1
            expected = exact[f"model.layers.{layer}.{name}.weight"]
            np.testing.assert_allclose(np.concatenate(blocks), expected, rtol=1e-6, atol=1e-7)
    assert checkpoint.source_format == f"safetensors {method} int{settings.get('bits', 4)}"
    assert any("dequantised" in note for note in checkpoint.notes)


@pytest.mark.parametrize(
    ("method", "settings", "bits"),
    [
        ("gptq", {}, 4),
        ("gptq", {"group": 64}, 4),
        ("gptq", {"group": -1}, 4),
        ("awq", {}, 4),
        ("gptq", {"group": 16}, None),
        ("gptq", {"act_order": True}, None),
        ("gptq", {"bits": 8}, None),
        ("gptq", {"bits": 8, "middle": True}, 8),
        ("gptq", {"bits": 2}, None),
    ],
    ids=str,
)
def test_blocks_are_the_folders_own(
    tmp_path: Path, method: str, settings: dict[str, Any], bits: int | None
) -> None:
    """Integers, scales and zeros as they lie there, wherever 32 inputs in a row share them; and what a packed
    export stores of them stands for the same numbers."""
    exact = write_quantised(tmp_path / "m", method, **settings)
    checkpoint = open_checkpoint(tmp_path / "m")
    assert isinstance(checkpoint, HfCheckpoint)
    for part, name in (("q", "self_attn.q_proj"), ("down", "mlp.down_proj")):
        tensor = f"layers.1.{part}"
        assert checkpoint.block_bits(tensor) == bits
        if bits is None:
            continue
        expected = exact[f"model.layers.1.{name}.weight"]
        rests = bits == 4 and checkpoint.block_minima(tensor)
        packing = Packing(*expected.shape, bits, rests=rests)
        rows = list(read_part(checkpoint, Part(tensor, 0.5), bits))
        values = np.concatenate([unpack(pack_rows(block, packing), packing) for block in rows])
        np.testing.assert_allclose(values, 0.5 * expected, rtol=1e-5, atol=1e-6)
        found = np.concatenate([block.dequantised() for block in checkpoint.quantised(tensor)])
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (note,) = (note for note in checkpoint.notes if "int" in note)
    assert ("kept as they are by --cpu-precision" in note) == (bits is not None)
    assert checkpoint.block_bits("embed") is None


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_matrices_that_were_joined_before_they_were_packed(tmp_path: Path, method: str) -> None:
    """Phi-3 has q, k and v in one matrix, gate and up in another."""
    exact = write_quantised(tmp_path / "m", method, fused=True)
    checkpoint = open_checkpoint(tmp_path / "m")
    assert isinstance(checkpoint, HfCheckpoint)
    for names, whole in (("q k v", "self_attn.qkv_proj"), ("gate up", "mlp.gate_up_proj")):
        parts = [f"layers.1.{part}" for part in names.split()]
        expected = exact[f"model.layers.1.{whole}.weight"]
        found = np.concatenate([block for part in parts for block in checkpoint.blocks(part)])
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
        assert {checkpoint.block_bits(part) for part in parts} == {4}
        kept = np.concatenate([block.dequantised() for part in parts for block in checkpoint.quantised(part)])
        np.testing.assert_allclose(kept, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "gptq", "bits": 3}, "gptq with 3 bits"),
        ({"quant_method": "awq", "version": "gemv"}, "AWQ of version gemv"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "layout marlin"),
        ({"quant_method": "bitsandbytes"}, "quantised by bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 16}, "config.json asks for"),
        ("gptq", "not an object"),
    ],
)
def test_refuses_other_packings(tmp_path: Path, settings: Any, message: str) -> None:
    write_quantised(tmp_path / "m", "gptq")
    change(tmp_path / "m", quantization_config=settings)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "m")


def test_damaged_packed_tensors_are_named(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write_quantised(tmp_path / "m", "gptq")
    good = load_file(tmp_path / "m" / "model.safetensors")
    base = "model.layers.1.self_attn.v_proj."
    for name, value, message in (
        (base + "g_idx", np.full(64, 9, np.int32), "beyond its 2 in g_idx"),
        (base + "scales", np.full((2, 32), np.inf, np.float16), "NaN or infinite"),
        (base + "bias", np.ones(32, np.float16), "that a llama model lacks"),
        (base + "qzeros", None, "qzeros is missing"),
    ):
        tensors = {**good, name: value}
        save_file(
            {key: array for key, array in tensors.items() if array is not None},
            tmp_path / "m" / "model.safetensors",
        )
        with pytest.raises(CheckpointError, match=message):
            list(open_checkpoint(tmp_path / "m").blocks("layers.1.v"))
