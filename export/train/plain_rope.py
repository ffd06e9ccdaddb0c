"""Rotary position embedding that nothing scales: the only kind that the nets which are trained have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Rotation(Protocol):
    """A `Rope` of a config, or a bundle's entry of one."""

    @property
    def frequencies(self) -> Sequence[float]: ...
    @property
    def scale(self) -> float: ...


def rope_base(rope: Rotation) -> float:
    """The base of its frequencies, before any scaling: that leaves the fastest ones alone, or divides all of
    them. A part of a head that turns is followed by zeros."""
    turned = [frequency for frequency in rope.frequencies if frequency > 0]
    if len(turned) < 2:
        return 10000.0
    return float(round((turned[0] / turned[1]) ** len(turned), 3))


def is_plain(rope: Rotation, head_dim: int) -> bool:
    """Whether it turns all of a head, by the frequencies of its base and no others."""
    plain = rope_base(rope) ** (-np.arange(0, head_dim, 2) / head_dim)
    same = len(plain) == len(rope.frequencies) and np.allclose(rope.frequencies, plain, rtol=1e-4)
    return bool(same) and rope.scale == 1.0
