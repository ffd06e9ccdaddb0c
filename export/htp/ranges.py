"""The values a model's activations take, keyed by the meaning of each value and shared by every width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.errors import ExportError

HEADROOM = 1.1
"""Other texts reach a little further than the calibration's; at 16 bits the room costs nothing."""
_STEPS = 65535


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a value is stored in 16 bits: real = (stored - zero) * scale."""

    scale: np.float32
    zero: np.uint16


@dataclass(slots=True)
class Ranges:
    """Smallest and largest number of each value, and of each projection the mean squares [in] and largest
    magnitudes [in] of its input over `rows` rows."""

    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    squares: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    peaks: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    rows: int = 0

    def widen(self, name: str, low: float, high: float) -> None:
        if not np.isfinite([low, high]).all():
            raise ExportError(
                f"calibration met a number that is not finite in {name}",
                "check the checkpoint with `hexgraft run`",
            )
        self.low[name] = min(low, self.low.get(name, low))
        self.high[name] = max(high, self.high.get(name, high))

    def add_inputs(
        self, squares: Mapping[str, NDArray[np.float32]], peaks: Mapping[str, NDArray[np.float32]], rows: int
    ) -> None:
        """Take the sums of squares [in] and the largest magnitudes [in] over a further `rows` rows in."""
        for name, total in squares.items():
            known = self.squares.get(name, np.zeros(total.shape))
            self.squares[name] = (known * self.rows + total) / (self.rows + rows)
        for name, peak in peaks.items():
            self.peaks[name] = np.maximum(self.peaks.get(name, 0), peak).astype(np.float32)
        self.rows += rows

    def encoding(self, names: Iterable[str]) -> Encoding:
        """One encoding for all of `names`, with headroom; zero is always met exactly."""
        names = list(names)
        for name in names:
            if name not in self.low:
                raise ExportError(
                    f"no calibrated range for the value {name}",
                    "calibrate again: the graph has changed since",
                )
        low = min(0.0, *(self.low[name] for name in names)) * HEADROOM
        high = max(0.0, *(self.high[name] for name in names)) * HEADROOM
        scale = np.float32(max(high - low, 1e-6) / _STEPS)
        return Encoding(scale, np.uint16(np.clip(round(-low / float(scale)), 0, _STEPS)))

    def copy(self) -> Ranges:
        return Ranges(dict(self.low), dict(self.high), self.squares, self.peaks, self.rows)

    def with_mask(self, before: float, after: float) -> Ranges:
        """The same for a graph whose mask hides with `after` instead of `before`."""
        low = {
            name: value - before + after if value <= before / 2 else value for name, value in self.low.items()
        }
        return Ranges(low, self.high, self.squares, self.peaks, self.rows)

    def check(self, values: Iterable[str]) -> None:
        """Every range must name a value of the graph and every value must have one: a range that landed on
        another value is worse than none."""
        graph, table = set(values), set(self.low)
        if graph == table:
            return
        odd = sorted(graph ^ table)[0]
        where = "the graph's value has no range" if odd in graph else "no value of the graph has this range"
        raise ExportError(
            f"calibrated ranges and graph differ in {len(graph ^ table)} names, first {odd}: {where}",
            "calibrate again: the graph has changed since",
        )


def save_ranges(ranges: Ranges, path: Path) -> None:
    names = sorted(ranges.low)
    inputs = {f"square:{name}": value for name, value in ranges.squares.items()}
    inputs |= {f"peak:{name}": value.astype(np.float64) for name, value in ranges.peaks.items()}
    np.savez(
        path,
        allow_pickle=False,
        names=np.array(names),
        low=np.array([ranges.low[name] for name in names]),
        high=np.array([ranges.high[name] for name in names]),
        rows=np.array(ranges.rows),
        **inputs,
    )


def load_ranges(path: Path) -> Ranges:
    with np.load(path, allow_pickle=False) as file:
        names = [str(name) for name in file["names"]]
        inputs = {
            kind: {key.partition(":")[2]: file[key] for key in file.files if key.startswith(kind + ":")}
            for kind in ("square", "peak")
        }
        return Ranges(
            dict(zip(names, file["low"].tolist(), strict=True)),
            dict(zip(names, file["high"].tolist(), strict=True)),
            inputs["square"],
            {name: value.astype(np.float32) for name, value in inputs["peak"].items()},
            int(file["rows"]),
        )
