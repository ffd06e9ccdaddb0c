"""The K/V cache of graphs whose past has CL - T columns: one set of buffers a width, with the same
slots.

A width's graph addresses only as many slots as its past has columns. The session offers those that every
width has, so that a slot means the same whichever graph runs, and a change of width moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.foreign.encoding import Stored, dtype_of, to_real, to_stored
from hexgraft.host.manifest import Encoding, ModelEntry
from hexgraft.host.session import CacheRows
from hexgraft.models.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's buffers: keys [kv_heads, head_dim, columns], values [kv_heads, columns, head_dim]."""

    keys: Stored
    values: Stored


class PastCache:
    """Slots 0..capacity-1 in the buffers of each width, as the graphs store them; real zeros at first.

    `columns` is CL, so that the buffers of width T have CL - T slots. They appear when the width is first
    asked for, and are written along from then on.
    """

    def __init__(self, model: ModelEntry, columns: int, capacity: int, width: int) -> None:
        self._model, self._columns, self.capacity = model, columns, capacity
        self._encodings: list[tuple[Encoding | None, Encoding | None]] = [
            (entry.key, entry.value) for entry in model.kv_encodings
        ] or [(None, None)] * model.layers
        self._buffers = {width: self._allocate(columns - width)}

    def at(self, width: int) -> Sequence[Layer]:
        """The buffers that the graph of a width reads."""
        if width not in self._buffers:
            fresh = self._allocate(self._columns - width)
            for old, new in zip(next(iter(self._buffers.values())), fresh, strict=True):
                new.keys[..., : self.capacity] = old.keys[..., : self.capacity]
                new.values[:, : self.capacity] = old.values[:, : self.capacity]
            self._buffers[width] = fresh
        return self._buffers[width]

    def _allocate(self, past: int) -> list[Layer]:
        m = self._model
        return [
            Layer(
                np.full((m.kv_heads, m.head_dim, past), _zero(key), dtype_of(key)),
                np.full((m.kv_heads, past, m.head_dim), _zero(value), dtype_of(value)),
            )
            for key, value in self._encodings
        ]

    def _layers(self) -> Iterator[tuple[int, Layer]]:
        for layers in self._buffers.values():
            yield from enumerate(layers)

    def store(self, staged: Sequence[Layer], rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy rows of the last pass, which are its columns in `staged`, into slots."""
        self.check(int(slots.max()))
        for i, layer in self._layers():
            layer.keys[..., slots] = staged[i].keys[..., rows]
            layer.values[:, slots] = staged[i].values[:, rows]

    def move(self, source: NDArray[np.intp], target: NDArray[np.intp]) -> None:
        """Copy slots onto slots; the right-hand side is gathered first, so overlaps are safe."""
        for _, layer in self._layers():
            layer.keys[..., target] = layer.keys[..., source]
            layer.values[:, target] = layer.values[:, source]

    def clear(self) -> None:
        """Real zeros everywhere, as in the beginning, in the same buffers."""
        for i, layer in self._layers():
            key, value = self._encodings[i]
            layer.keys.fill(_zero(key))
            layer.values.fill(_zero(value))

    def save(self, count: int) -> CacheRows:
        """Slots 0..count-1 as real numbers."""
        layers = next(iter(self._buffers.values()))
        pairs = list(zip(layers, self._encodings, strict=True))
        return CacheRows(
            np.stack([to_real(layer.keys[..., :count], key) for layer, (key, _) in pairs]),
            np.stack([to_real(layer.values[:, :count], value) for layer, (_, value) in pairs]),
        )

    def restore(self, rows: CacheRows) -> None:
        """The inverse: real numbers that came from `save` become the very integers they were."""
        expected = (self._model.layers, self._model.kv_heads, self._model.head_dim)
        finite = np.isfinite(rows.keys).all() and np.isfinite(rows.values).all()
        if rows.keys.shape[:3] != expected or not finite:
            raise DecodeError("the saved cache does not belong to this model or is damaged")
        self.check(rows.count - 1)
        for i, layer in self._layers():
            key, value = self._encodings[i]
            layer.keys[..., : rows.count] = to_stored(rows.keys[i], key)
            layer.values[:, : rows.count] = to_stored(rows.values[i], value)

    def check(self, slot: int) -> None:
        """Raise DecodeError for a slot that not every width can address."""
        if slot >= self.capacity:
            raise DecodeError(
                f"slot {slot} is beyond the context of {self.capacity} slots",
                "end the text earlier, or use narrower --widths, which leave more slots",
            )


def _zero(encoding: Encoding | None) -> int:
    return encoding.zero if encoding is not None else 0
