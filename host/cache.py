"""The K/V cache in the graph's own layout: slots are written, moved and grown here, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.layout import is_joined
from hexgraft.host.manifest import ModelEntry
from hexgraft.host.session import CacheRows, Floats
from hexgraft.host.staging import Stage
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

    In the joined layout both are [layers, kv_heads, S, head_dim]: behind the C slots is room for the `width`
    rows of the widest pass, which the graph itself writes there, and for slots to come, in which the cache
    grows without a copy; the system gives memory to what is written only. Unwritten slots must hold finite
    numbers: a masked column still takes part in a product with probability 0. `capacities` are all the sizes
    the cache may have, ascending; none: steps of STEP, then of COARSE. `positions` [C] int32 is where in the
    text each slot's row stands, which windows are measured by.
    """

    def __init__(
        self, model: ModelEntry, capacity: int, capacities: Sequence[int] = (), width: int = 0
    ) -> None:
        self._model = model
        self._capacities = capacities
        self._joined = is_joined(model)
        self._room = width if self._joined else 0
        self.capacity = capacity
        self.keys, self.values = self._allocate(capacity)
        self.positions = np.zeros(capacity, np.int32)
        self._used = 0  # slots from here on have not been written
        self._behind = 0  # rows behind the slots that may have been

    def _allocate(self, capacity: int) -> tuple[Floats, Floats]:
        m = self._model
        slots = capacity
        if self._joined:
            slots = max(capacity, min(m.context, -(-capacity // FEW) * FEW)) + self._room
        keys = (slots, m.head_dim) if self._joined else (m.head_dim, slots)
        return (
            np.zeros((m.layers, m.kv_heads, *keys), np.float32),
            np.zeros((m.layers, m.kv_heads, slots, m.head_dim), np.float32),
        )

    def grow(self, slots: int, staged: int = 0) -> bool:
        """Make room for `slots` slots: the next of `capacities`, or whole steps up to the model's context.
        True if bindings are stale; the first `staged` rows behind the slots move along."""
        if slots > self._model.context:
            raise DecodeError(f"slot {slots - 1} is beyond the context of {self._model.context} slots")
        if slots <= self.capacity:
            return False
        step = STEP if slots <= FEW else COARSE
        steps = min(self._model.context, -(-slots // step) * step)
        capacity = next((given for given in self._capacities if given >= slots), steps)
        here = self._slots(self.keys, self.values)
        behind = [cache[..., self.capacity : self.capacity + staged, :].copy() for cache in here]
        if self._joined and capacity + self._room <= self.values.shape[2]:
            for cache in here:  # the rows were no slots' numbers
                cache[..., self.capacity : self.capacity + self._behind, :] = 0
        else:
            self.keys, self.values = self._allocate(capacity)
            for new, old in zip(self._slots(self.keys, self.values), here, strict=True):
                new[..., : self.capacity, :] = old[..., : self.capacity, :]
        for cache, rows in zip(self._slots(self.keys, self.values), behind, strict=True):
            cache[..., capacity : capacity + staged, :] = rows
        self.positions = np.pad(self.positions, (0, capacity - self.capacity))
        self.capacity, self._behind = capacity, staged
        return True

    def _slots(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Both as views [layers, kv_heads, slots or rows, head_dim], as values always are."""
        return keys if self._joined else keys.swapaxes(-1, -2), values

    def store(
        self, stage: Stage, positions: NDArray[np.int32], rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Copy rows of the last pass, which lie in `stage` or behind the slots; positions [T]."""
        self._used = max(self._used, max(slots.tolist(), default=-1) + 1)
        source, target = _together(rows), _together(slots)
        self.positions[target] = positions[source]
        caches = self._slots(self.keys, self.values)
        staged = caches if self._joined else self._slots(stage.keys, stage.values)
        source = _together(rows, self.capacity) if self._joined else source
        for cache, given in zip(caches, staged, strict=True):
            cache[..., target, :] = given[..., source, :]

    def move(self, source: NDArray[np.intp], target: NDArray[np.intp]) -> None:
        """Copy slots onto slots at or below them; the right-hand side is gathered first, so overlaps are
        safe."""
        self.positions[target] = self.positions[source]
        read, written = _together(source), _together(target)
        for cache in self._slots(self.keys, self.values):
            cache[..., written, :] = cache[..., read, :]

    def clear(self) -> None:
        """As at first, at the capacity it has. Takes time for the slots that were written only."""
        self.positions[: self._used] = 0
        for cache in self._slots(self.keys, self.values):
            cache[..., : self._used, :] = 0
        self._used = 0

    def save(self, count: int) -> CacheRows:
        keys, values = self._slots(self.keys, self.values)
        return CacheRows(keys[..., :count, :].swapaxes(-1, -2).copy(), values[..., :count, :].copy())

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
        keys, values = self._slots(self.keys, self.values)
        keys[..., : rows.count, :] = rows.keys.swapaxes(-1, -2)
        values[..., : rows.count, :] = rows.values

    def tensors(self, stage: Stage) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """A graph's inputs and outputs of K/V rows by name: the same arrays where they are joined, behind
        whose slots there will be as many rows as `stage` has."""
        inputs: dict[str, Floats] = {}
        outputs: dict[str, Floats] = {}
        self._behind = max(self._behind, stage.ids.shape[1])
        for i in range(self._model.layers):
            if self._joined:
                inputs[f"past_key_{i}_in"] = outputs[f"past_key_{i}_out"] = self.keys[i][None]
                inputs[f"past_value_{i}_in"] = outputs[f"past_value_{i}_out"] = self.values[i][None]
                continue
            inputs[f"past_key_{i}_in"] = self.keys[i][:, None]
            inputs[f"past_value_{i}_in"] = self.values[i][:, None]
            outputs[f"past_key_{i}_out"] = stage.keys[i][:, None]
            outputs[f"past_value_{i}_out"] = stage.values[i][:, None]
        return inputs, outputs


def _together(places: NDArray[np.intp], behind: int = 0) -> slice | NDArray[np.intp]:
    """Places so far `behind` those given; as a slice, which is copied many times faster, where they follow
    one another."""
    if places.size == 0 or (places.size > 1 and (np.diff(places) != 1).any()):
        return places + behind
    return slice(int(places[0]) + behind, int(places[-1]) + 1 + behind)
