"""The K/V cache in the graph's own layout: slots are written, moved and grown here, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.manifest import ModelEntry
from hexgraft.host.session import CacheRows, Floats
from hexgraft.models.errors import DecodeError

STEP = 64
"""Slots a growing cache adds at a time: a pass costs what the cache could hold, and short chats are not to
pay for long attention."""

FEW = 512
"""Up to so many slots; beyond them it adds COARSE at a time, since growth copies all there are."""

COARSE = 256


class Cache:
    """keys [layers, kv_heads, head_dim, C] and values [layers, kv_heads, C, head_dim], float32, zero at
    first.

    Unwritten slots must hold finite numbers: a masked column still takes part in a product with probability
    0. `capacities` are all the sizes the cache may have, ascending; none: steps of STEP, then of COARSE.
    `positions` [C] int32 is where in the text each slot's row stands, which windows are measured by.
    """

    def __init__(self, model: ModelEntry, capacity: int, capacities: Sequence[int] = ()) -> None:
        self._model = model
        self._capacities = capacities
        self.capacity = capacity
        self.keys, self.values = self._allocate(capacity)
        self.positions = np.zeros(capacity, np.int32)
        self._used = 0  # slots from here on have not been written

    def _allocate(self, capacity: int) -> tuple[Floats, Floats]:
        m = self._model
        keys = np.zeros((m.layers, m.kv_heads, m.head_dim, capacity), np.float32)
        values = np.zeros((m.layers, m.kv_heads, capacity, m.head_dim), np.float32)
        return keys, values

    def grow(self, slots: int) -> bool:
        """Make room for `slots` slots: the next of `capacities`, or whole steps up to the model's context.
        True if the buffers moved."""
        if slots > self._model.context:
            raise DecodeError(f"slot {slots - 1} is beyond the context of {self._model.context} slots")
        if slots <= self.capacity:
            return False
        step = STEP if slots <= FEW else COARSE
        steps = min(self._model.context, -(-slots // step) * step)
        capacity = next((given for given in self._capacities if given >= slots), steps)
        keys, values = self._allocate(capacity)
        keys[..., : self.capacity] = self.keys
        values[..., : self.capacity, :] = self.values
        self.positions = np.pad(self.positions, (0, capacity - self.capacity))
        self.capacity, self.keys, self.values = capacity, keys, values
        return True

    def store(
        self,
        keys: Floats,
        values: Floats,
        positions: NDArray[np.int32],
        rows: NDArray[np.intp],
        slots: NDArray[np.intp],
    ) -> None:
        """Copy staged rows (keys [layers, kv_heads, head_dim, T], values [layers, kv_heads, T, head_dim],
        positions [T])."""
        self._used = max(self._used, int(slots.max(initial=-1)) + 1)
        self.positions[slots] = positions[rows]
        self.keys[..., slots] = keys[..., rows]
        self.values[..., slots, :] = values[..., rows, :]

    def move(self, source: NDArray[np.intp], target: NDArray[np.intp]) -> None:
        """Copy slots onto slots at or below them; the right-hand side is gathered first, so overlaps are
        safe."""
        self.positions[target] = self.positions[source]
        self.keys[..., target] = self.keys[..., source]
        self.values[..., target, :] = self.values[..., source, :]

    def clear(self) -> None:
        """As at first, at the capacity it has. Takes time for the slots that were written only."""
        self.positions[: self._used] = 0
        self.keys[..., : self._used] = 0
        self.values[..., : self._used, :] = 0
        self._used = 0

    def save(self, count: int) -> CacheRows:
        return CacheRows(self.keys[..., :count].copy(), self.values[..., :count, :].copy())

    def restore(self, rows: CacheRows) -> None:
        expected = (self._model.layers, self._model.kv_heads, self._model.head_dim)
        if (
            rows.keys.shape[:3] != expected
            or not np.isfinite(rows.keys).all()
            or not np.isfinite(rows.values).all()
        ):
            raise DecodeError("the saved cache does not belong to this model or is damaged")
        self._used = max(self._used, rows.count)
        # What is saved is committed, and committed slots stand in order of position.
        self.positions[: rows.count] = np.arange(rows.count)
        self.keys[..., : rows.count] = rows.keys
        self.values[..., : rows.count, :] = rows.values
