"""Heads of which only the first dimensions are rotated, laid out so that rotating all of them is the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.config import ModelConfig, Rope

ROTATED = ("q", "k", "q_bias", "k_bias")
"""The tensors of a layer whose rows are rotated heads."""


def padded_rope(rope: Rope, head_dim: int) -> Rope:
    """The same rotation over the whole head: further pairs of dimensions have the frequency 0."""
    missing = head_dim // 2 - len(rope.frequencies)
    return Rope(head_dim, rope.frequencies + (0.0,) * missing, rope.scale)


def spread_heads(rows: NDArray[np.float32], config: ModelConfig) -> NDArray[np.float32]:
    """Rows of whole heads of q or k, put where `padded_rope` rotates them.

    Scores do not change when q and k are permuted alike. What is not rotated is divided by the RoPE's scale,
    since cos of 0 is multiplied by it.
    """
    rotated = config.rotated
    if rotated is None:
        return rows
    dim = config.head_dim
    kept = np.arange(rotated, dim)
    pairs = np.arange(rotated).reshape(2, -1)
    order = np.concatenate((pairs[0], kept[: len(kept) // 2], pairs[1], kept[len(kept) // 2 :]))
    heads = rows.reshape(-1, dim, *rows.shape[1:])[:, order]
    if config.rope.scale != 1.0:
        heads[:, order >= rotated] /= np.float32(config.rope.scale)
    return heads.reshape(rows.shape)
