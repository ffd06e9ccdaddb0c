"""Random numbers that are functions of (seed, absolute position, token), so that a draw does not depend on
the tree.

Plain decoding and every tree ask for the same number at the same place; so can another language or a phone,
since the generator is a few 64-bit integer operations.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def uniforms(seed: int, position: int, stream: NDArray[np.integer]) -> NDArray[np.float64]:
    """One number in (0, 1) per element of `stream`: SplitMix64's finaliser, keyed in turn by all three
    arguments.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The open
    interval has 2^52 values, each half a step away from both ends.
    """
    with np.errstate(over="ignore"):
        key = _mix(np.uint64(seed & 0xFFFFFFFFFFFFFFFF) + _GOLDEN)
        key = _mix(key ^ (np.uint64(position) * _GOLDEN + _FIRST))
        bits = _mix(key + stream.astype(np.uint64) * _GOLDEN)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbels(seed: int, position: int, tokens: NDArray[np.integer]) -> NDArray[np.float64]:
    """Standard Gumbel noise per token: argmax(log p + noise) is a draw from p (Gumbel-max)."""
    return -np.log(-np.log(uniforms(seed, position, tokens)))


class Stream(IntEnum):
    """Who asks: numbers of different streams are independent of each other and of the token noise."""

    DRAFT = 1
    VERIFY = 2


class Source(Protocol):
    """The randomness of one decision. Rules take all theirs from here, so that a test can plug in one that
    follows every branch."""

    def coin(self, probability: float) -> bool:
        """True with this probability."""
        ...

    def draw(self, weights: NDArray[np.float64]) -> int:
        """A place with probability proportional to its weight; never one of weight 0."""
        ...


class Keyed:
    """A source that is a function of (seed, position, stream) and of how often it was asked before."""

    def __init__(self, seed: int, position: int, stream: Stream) -> None:
        self._seed = seed
        self._position = position
        self._next = int(stream) << 48

    def coin(self, probability: float) -> bool:
        return self._uniform() < probability

    def draw(self, weights: NDArray[np.float64]) -> int:
        return pick(weights, self._uniform())

    def _uniform(self) -> float:
        value = uniforms(self._seed, self._position, np.array([self._next]))
        self._next += 1
        return float(value[0])


def pick(weights: NDArray[np.float64], uniform: float) -> int:
    """The place where the running sum of the weights passes `uniform` in [0, 1) of their total."""
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    # Rounding may carry the product up to the total, which no place passes.
    return place if place < len(sums) else int(np.flatnonzero(weights)[-1])


def _mix(x: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    y = np.asarray(x, np.uint64)
    y = (y ^ (y >> np.uint64(30))) * _FIRST
    y = (y ^ (y >> np.uint64(27))) * _SECOND
    return y ^ (y >> np.uint64(31))
