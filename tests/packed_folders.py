"""GPTQ and AWQ folders of random integers, and the numbers they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tiny import read_tiny_weights, write_tiny_hf

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
QUANTISED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Phi-3's matrices, and what lies in each one below the other."""


def packed(values: NDArray[np.int64], bits: int, order: list[int] | None = None) -> NDArray[np.int32]:
    """Values of the last axis put into 32-bit words one by one, the first in the lowest bits."""
    each = 32 // bits
    words = np.zeros((*values.shape[:-1], values.shape[-1] // each), np.uint64)
    for i in range(each):
        words |= values[..., (order[i] if order else i) :: each].astype(np.uint64) << np.uint64(bits * i)
    return words.astype(np.uint32).view(np.int32)


def write_quantised(
    path: Path,
    method: str,
    bits: int = 4,
    group: int = 32,
    act_order: bool = False,
    middle: bool = False,
    fused: bool = False,
) -> Any:
    """A tiny folder whose matrices are replaced by random packed ones; their exact values by name. `fused`
    makes it a Phi-3."""
    write_tiny_hf(path, layers=2)
    weights, exact, rng = read_tiny_weights(path), {}, np.random.default_rng(0)
    if fused:
        weights = fuse(weights)
        change(path, model_type="phi3", sliding_window=None)
    tensors: dict[str, NDArray[Any]] = {}
    for name, array in weights.items():
        if not any(part in name for part in (*QUANTISED, *FUSED)):
            tensors[name] = array
            continue
        out, inner = array.shape
        groups = -(-inner // group) if group > 0 else 1
        size = group if group > 0 else inner
        values = rng.integers(0, 1 << bits, (out, inner))
        zeros = rng.integers(1, (1 << bits) + (method == "gptq"), (groups, out))
        if middle:
            zeros[:] = 1 << (bits - 1)
        scales = rng.uniform(0.01, 0.02, (groups, out)).astype(np.float16)
        place = np.arange(inner) // size
        if act_order:
            place = rng.permutation(place)
        exact[name] = ((values - zeros[place].T) * scales.astype(np.float32)[place].T).astype(np.float32)
        base = name.removesuffix("weight")
        tensors[base + "scales"] = scales
        if method == "gptq":
            tensors[base + "qweight"] = packed(values, bits).T.copy()
            tensors[base + "qzeros"] = packed(zeros - 1, bits)
            tensors[base + "g_idx"] = place.astype(np.int32)
            tensors[base + "bias"] = np.zeros(out, np.float16)
        else:
            tensors[base + "qweight"] = packed(values.T, bits, AWQ_ORDER)
            tensors[base + "qzeros"] = packed(zeros, bits, AWQ_ORDER)
    save_file(tensors, path / "model.safetensors")
    settings = {"quant_method": method, "bits": bits, "group_size": group}
    change(path, quantization_config=settings)
    return exact


def fuse(weights: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The weights of a Llama as Phi-3 names and joins them."""
    weights = dict(weights)
    for layer in range(2):
        for whole, parts in FUSED.items():
            rows = [weights.pop(f"model.layers.{layer}.{part}.weight") for part in parts]
            weights[f"model.layers.{layer}.{whole}.weight"] = np.concatenate(rows)
    return weights


def change(path: Path, **values: Any) -> None:
    config = json.loads((path / "config.json").read_text()) | values
    (path / "config.json").write_text(json.dumps(config))
