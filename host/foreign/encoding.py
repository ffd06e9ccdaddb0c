"""Quantised inputs and outputs: from real numbers to the integers a graph takes, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.manifest import Encoding
from hexgraft.host.session import Floats

Stored = NDArray[Any]
"""Numbers as a graph takes or gives them: float32, or integers that an `Encoding` explains."""


def dtype_of(encoding: Encoding | None) -> np.dtype[Any]:
    """The type of stored numbers; without an encoding they are float32."""
    return np.dtype(np.float32 if encoding is None else encoding.dtype)


def to_stored(reals: NDArray[np.floating[Any]], encoding: Encoding | None) -> Stored:
    """Stored numbers of real ones: to the nearest integer, ties to even, clipped to the type's range."""
    if encoding is None:
        return reals.astype(np.float32)
    limits = np.iinfo(encoding.dtype)
    codes = np.rint(reals / np.float32(encoding.scale)) + encoding.zero
    clipped: Stored = np.clip(codes, limits.min, limits.max).astype(encoding.dtype)
    return clipped


def to_real(stored: Stored, encoding: Encoding | None) -> Floats:
    """Real numbers of stored ones: (stored - zero) * scale in float32, as DequantizeLinear has it."""
    if encoding is None:
        return stored.astype(np.float32)
    return (stored.astype(np.int32) - encoding.zero).astype(np.float32) * np.float32(encoding.scale)
