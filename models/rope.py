"""Rotary position tables, computed on the host so that a tree node's position is free of its cache slot."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.config import Rope

_STEP = 1024
"""Positions computed at a time."""


class RopeTable:
    """cos and sin of positions below `positions`, rows of [head_dim / 2] float32, made as far as they are
    asked for: a model's context may be far longer than any text.

    Angles are taken in float64 and rounded once, so that far positions keep their phase.
    """

    def __init__(self, rope: Rope, positions: int) -> None:
        self._rope, self._positions = rope, positions
        self._cos = self._sin = np.empty((0, len(rope.frequencies)), np.float32)

    def at(self, positions: NDArray[np.intp]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin [T, head_dim / 2] of `positions` [T]."""
        self._grow(max(positions.tolist(), default=0) + 1)
        return self._cos.take(positions, axis=0), self._sin.take(positions, axis=0)

    @property
    def cos(self) -> NDArray[np.float32]:
        """Of every position."""
        self._grow(self._positions)
        return self._cos

    @property
    def sin(self) -> NDArray[np.float32]:
        """Of every position."""
        self._grow(self._positions)
        return self._sin

    def _grow(self, wanted: int) -> None:
        have = len(self._cos)
        if wanted <= have:
            return
        until = max(have, min(self._positions, -(-wanted // _STEP) * _STEP))
        angles = np.arange(have, until, dtype=np.float64)[:, None] * np.asarray(self._rope.frequencies)
        cos, sin = ((turned(angles) * self._rope.scale).astype(np.float32) for turned in (np.cos, np.sin))
        self._cos = np.concatenate((self._cos, cos))
        self._sin = np.concatenate((self._sin, sin))
