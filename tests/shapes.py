"""Latency tables of known shape for tests: flat as on an NPU, steep as on a quantised CPU."""

from __future__ import annotations

from hexgraft.host.measure.profile import (
    FORMAT,
    LatencyProfile,
    Machine,
    ModelTimes,
    PassTime,
    Source,
    Spread,
)

WIDTHS = (1, 4, 8, 16, 32)
FLAT = (1.0, 1.02, 1.05, 1.1, 1.2)
STEEP = (1.0, 1.6, 2.1, 3.2, 5.5)
SHAPES = {"flat": FLAT, "steep": STEEP}


def times(name: str, one: float, shape: tuple[float, ...], *, growth: float = 0.1) -> ModelTimes:
    """`one` second for one row of an empty cache; full ones (256 tokens) cost `growth` more."""
    passes = [
        PassTime(width, fill, Spread.single(one * factor * (1 + growth * fill / 256)))
        for fill in (0, 256)
        for width, factor in zip(WIDTHS, shape, strict=True)
    ]
    return ModelTimes(name, passes, list(WIDTHS))


def shaped_profile(shape: str, *, draft: float = 0.1) -> LatencyProfile:
    """A target of 50 ms a row and a draft of that share of it."""
    return LatencyProfile(
        format=FORMAT,
        source=Source("published", "2026-11-29", "a test"),
        machine=Machine("a machine of tests"),
        backend="shaped",
        target=times("target", 0.05, SHAPES[shape]),
        draft=times("draft", 0.05 * draft, SHAPES[shape]),
        host_round=Spread.single(0.0),
    )
