"""Rotary position tables, computed on the host so that a tree node's position is free of its cache slot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.config import Rope


class RopeTable:
    """cos and sin of every position up to `positions`, rows of [head_dim / 2] float32.

    Angles are taken in float64 and rounded once, so that far positions keep their phase.
    """

    def __init__(self, rope: Rope, positions: int) -> None:
        angles = np.arange(positions, dtype=np.float64)[:, None] * np.asarray(rope.frequencies)
        self.cos: NDArray[np.float32] = (np.cos(angles) * rope.scale).astype(np.float32)
        self.sin: NDArray[np.float32] = (np.sin(angles) * rope.scale).astype(np.float32)
