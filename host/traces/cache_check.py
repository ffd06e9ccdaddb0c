"""Finds the first cell in which two caches part, or in which a cache changed what had been written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hexgraft.host.session import Bools, CacheRows, Floats, Session
from hexgraft.host.traces.replay import ForcedPass
from hexgraft.host.traces.trace import finite

NOISE = 0.05
"""Difference of a fresh cell, relative to the root mean square of its key or value, that passes as rounding:
float32 stays below 1e-3, float16 below 1e-2, and a flipped sign of a typical cell makes 2."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The first differing cell of a replay: lowest layer first, then slot.

    `kind` is "changed" where a session no longer holds what it held a round ago (`session` says which;
    `expected` is the old value), "differs" where a cell written in this round is not the reference's. `part`
    is "key" or "value", `cells` counts all such cells of the round.
    """

    kind: str
    session: str
    round: int
    layer: int
    slot: int
    part: str
    head: int
    dim: int
    expected: float
    found: float
    cells: int

    def as_dict(self) -> dict[str, Any]:
        """For --json; a cell that is not finite is null."""
        return asdict(self) | {"expected": finite(self.expected), "found": finite(self.found)}


class CacheCheck:
    """Told every pass of a replay, compares what the two caches hold; `damage` is the first thing found.

    Committed cells must stay as they are to the bit, whatever the arithmetic. Fresh ones may differ from the
    reference's by `noise` times the root mean square of their vector.
    """

    def __init__(self, reference: Session, other: Session, noise: float = NOISE) -> None:
        self._sessions = (("reference", reference), ("other", other))
        self._noise = noise
        self._before: list[CacheRows] = []
        self.damage: Damage | None = None

    def __call__(self, forced: ForcedPass) -> None:
        if self.damage is not None:
            return
        count = forced.context + len(forced.accepted)
        (_, reference), (_, other) = self._sessions
        now = [reference.save(count), other.save(count)]
        for (name, _), old, new in zip(self._sessions, self._before, now, strict=False):
            self.damage = self.damage or _changed(name, forced.round, old, new)
        self.damage = self.damage or _differs(forced.round, forced.context, now[0], now[1], self._noise)
        self._before = now


def _changed(session: str, number: int, old: CacheRows, new: CacheRows) -> Damage | None:
    kept = [cells[:, :, : old.count] for cells in _cells(new)]
    before = _cells(old)
    # Not "!=" alone: a NaN that stays one has not changed.
    marks = [(a != b) & ~(np.isnan(a) & np.isnan(b)) for a, b in zip(before, kept, strict=True)]
    return _first("changed", session, number, 0, before, kept, marks)


def _differs(number: int, start: int, reference: CacheRows, other: CacheRows, noise: float) -> Damage | None:
    ours, theirs = ([cells[:, :, start:] for cells in _cells(rows)] for rows in (reference, other))
    marks: list[Bools] = []
    for a, b in zip(ours, theirs, strict=True):
        scale = np.sqrt((a.astype(np.float64) ** 2).mean(axis=-1, keepdims=True))
        with np.errstate(invalid="ignore"):
            # Negated, so that NaN on either side is a difference.
            marks.append(~(np.abs(a - b) <= noise * scale))
    return _first("differs", "other", number, start, ours, theirs, marks)


def _cells(rows: CacheRows) -> list[Floats]:
    """Keys and values alike as [layers, kv_heads, slots, head_dim]."""
    return [rows.keys.swapaxes(2, 3), rows.values]


def _first(
    kind: str,
    session: str,
    number: int,
    start: int,
    expected: list[Floats],
    found: list[Floats],
    marks: list[Bools],
) -> Damage | None:
    places = [
        (int(layer), int(slot), part, int(head), int(dim))
        for part, mark in enumerate(marks)
        for layer, head, slot, dim in _lowest(mark)
    ]
    if not places:
        return None
    layer, slot, part, head, dim = min(places)
    at = (layer, head, slot, dim)
    return Damage(
        kind=kind,
        session=session,
        round=number,
        layer=layer,
        slot=start + slot,
        part=("key", "value")[part],
        head=head,
        dim=dim,
        expected=float(expected[part][at]),
        found=float(found[part][at]),
        cells=sum(int(mark.sum()) for mark in marks),
    )


def _lowest(mark: Bools) -> list[tuple[int, int, int, int]]:
    """The first marked cell by layer, then slot; an empty list if nothing is marked."""
    if not mark.any():
        return []
    by_slot = mark.swapaxes(1, 2)
    layer, slot, head, dim = np.unravel_index(int(by_slot.argmax()), by_slot.shape)
    return [(int(layer), int(head), int(slot), int(dim))]
