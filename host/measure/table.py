"""Looks up what a pass costs in a profile: padded to the widths there are, between the fills measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from hexgraft.host.measure.profile import ModelTimes, ProfileError


class LatencyTable:
    """Seconds of a pass of some rows at some fill of the cache.

    Static graphs cost what the narrowest one that fits costs; where any width runs, cost is interpolated
    between the measured widths. Between measured fills it is interpolated too, beyond them the nearest
    counts. Every width needs the same fills or one at least.
    """

    def __init__(self, times: ModelTimes) -> None:
        self.name = times.name
        self.padded = times.widths is not None
        by_width: dict[int, dict[int, float]] = {}
        for each in times.passes:
            by_width.setdefault(each.width, {})[each.fill] = each.seconds
        wanted = sorted(set(times.widths)) if times.widths is not None else sorted(by_width)
        missing = [width for width in wanted if width not in by_width]
        if missing:
            raise ProfileError(
                f"the profile of {times.name} has no time of width {missing[0]}",
                "measure it with `hexgraft bench`, or take the width out of `widths`",
            )
        self.widths: Sequence[int] = wanted
        self._fills = {width: sorted(by_width[width]) for width in wanted}
        self._seconds = {width: [by_width[width][f] for f in self._fills[width]] for width in wanted}

    def width(self, rows: int) -> int:
        """The width a pass of `rows` runs at."""
        if not self.padded:
            return rows
        place = bisect_left(self.widths, rows)
        if place == len(self.widths):
            raise ProfileError(
                f"the profile of {self.name} knows passes of up to {self.widths[-1]} rows, not {rows}",
                f"use trees of at most {self.widths[-1]} nodes",
            )
        return self.widths[place]

    def seconds(self, rows: int, fill: int) -> float:
        """What a pass of `rows` costs with `fill` slots in use."""
        if self.padded:
            return self._at(self.width(rows), fill)
        place = bisect_left(self.widths, rows)
        if place < len(self.widths) and self.widths[place] == rows:
            return self._at(rows, fill)
        if place == 0:
            return self._at(self.widths[0], fill)
        if place == len(self.widths):
            # Beyond what was measured, the last slope goes on; a single width tells of no slope.
            place = max(1, place - 1)
            if len(self.widths) == 1:
                return self._at(self.widths[0], fill)
        low, high = self.widths[place - 1], self.widths[place]
        return _between(low, self._at(low, fill), high, self._at(high, fill), rows)

    def total(self, passes: Mapping[tuple[int, int], int] | Iterable[tuple[tuple[int, int], int]]) -> float:
        """Seconds of counted passes, by (rows, fill)."""
        items = passes.items() if isinstance(passes, Mapping) else passes
        return sum(count * self.seconds(rows, fill) for (rows, fill), count in items)

    def _at(self, width: int, fill: int) -> float:
        fills, seconds = self._fills[width], self._seconds[width]
        place = bisect_left(fills, fill)
        if place == 0:
            return seconds[0]
        if place == len(fills):
            return seconds[-1]
        return _between(fills[place - 1], seconds[place - 1], fills[place], seconds[place], fill)


def _between(low: int, at_low: float, high: int, at_high: float, place: int) -> float:
    return at_low + (at_high - at_low) * (place - low) / (high - low)
