"""Target features on their way to a draft head, and who takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hexgraft.host.session import CacheRows, Floats
from hexgraft.models.errors import DecodeError


@dataclass(frozen=True, slots=True)
class HeadCache:
    """A copy of what a head holds of a text: its cache rows, and the target's features of the positions
    behind them, [n, F]."""

    rows: CacheRows
    features: Floats


class FeatureReader(Protocol):
    """What the decode loop tells of the target's passes, for a drafter that reads their features.

    `features` is how many numbers it wants of a position.
    """

    features: int

    def align(self, keep: int) -> int:
        """The next text shares its first `keep` tokens with the last one; how many of them the target need
        not read again. Comes before every text."""
        ...

    def read(self, tokens: Sequence[int], start: int, features: Floats) -> None:
        """Features [n, features] of the positions from `start` on, of a prefill or of accepted nodes;
        `tokens` are the text as far as it is known."""
        ...

    def save(self) -> HeadCache:
        """A copy of what it holds of the text."""
        ...

    def restore(self, cache: HeadCache) -> None:
        """Hold what was saved, and nothing else; `align` comes after."""
        ...


def check_features(reader: FeatureReader, given: int) -> None:
    """Raises DecodeError unless a target gives the features a head reads."""
    if reader.features != given:
        raise DecodeError(
            f"the draft head reads {reader.features} numbers of every position, the target gives {given}",
            "run both on the same backend, or use --draft lookup",
        )


class Pending:
    """Features of consecutive positions `start` to `end` - 1 that no pass of the head has read."""

    def __init__(self, size: int) -> None:
        self.start = 0
        self._rows: Floats = np.empty((0, size), np.float32)

    @property
    def end(self) -> int:
        return self.start + len(self._rows)

    def add(self, start: int, rows: Floats) -> None:
        """Positions from `start` on; what was known of them before is replaced."""
        kept = self._rows[: max(0, start - self.start)] if self.start <= start <= self.end else self._rows[:0]
        self.start = start - len(kept)
        self._rows = np.concatenate((kept, rows))

    @property
    def rows(self) -> Floats:
        """A copy of all of them."""
        return self._rows.copy()

    def covers(self, start: int, end: int) -> bool:
        return self.start <= start and end <= self.end

    def keep(self, start: int, end: int) -> None:
        """Forget all but these positions."""
        self._rows = self._rows[start - self.start : end - self.start]
        self.start = start

    def take(self, start: int, end: int) -> Floats:
        """Features of the positions `start` to `end` - 1, which are forgotten with all before them."""
        if not self.covers(start, end):
            raise DecodeError(
                f"the draft head lacks the target's features of the positions {start} to {end - 1}"
            )
        taken: Floats = self._rows[start - self.start : end - self.start]
        self.keep(end, self.end)
        return taken

    def clear(self) -> None:
        self._rows = self._rows[:0]
