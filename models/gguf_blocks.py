"""The quantised blocks of a GGUF file as they are, for bundles that can hold them without rounding again.

The layouts of Q4_0, Q4_1 and Q8_0 are those of ggml's block structs: a block of 32 inputs has a
half-precision scale d, Q4_1 also a minimum m; values are d (q - 8), d q + m and d q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

BLOCK = 32
"""Inputs that share a scale, in these formats and in packed bundles."""

BITS = {
    GGMLQuantizationType.Q4_0: 4,
    GGMLQuantizationType.Q4_1: 4,
    GGMLQuantizationType.Q8_0: 8,
}
"""The formats read here, and how many bits each value of theirs takes."""

WITH_MINIMA = GGMLQuantizationType.Q4_1
"""The one whose minima are no whole number of scales."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of blocks, each weight scale * value + minimum: `values` [rows, blocks, 32], `scales` and `minima`
    [rows, blocks] float32."""

    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    minima: NDArray[np.float32]

    def dequantised(self) -> NDArray[np.float32]:
        """Rows [rows, inner] of float32."""
        rows = self.values * self.scales[..., None] + self.minima[..., None]
        return np.asarray(rows.reshape(len(rows), -1), np.float32)


def read_blocks(raw: NDArray[np.uint8], kind: GGMLQuantizationType) -> Blocks:
    """Raw rows [rows, bytes] of a format in `BITS`."""
    if kind == GGMLQuantizationType.Q8_0:
        cut = raw.reshape(len(raw), -1, 34)
        scales = _halves(cut, 0)
        return Blocks(cut[..., 2:] ^ np.uint8(128), scales, -128 * scales)
    has_minimum = kind == WITH_MINIMA
    cut = raw.reshape(len(raw), -1, 20 if has_minimum else 18)
    scales = _halves(cut, 0)
    minima = _halves(cut, 2) if has_minimum else -8 * scales
    packed = cut[..., -16:]
    # The low halves of the 16 bytes are the block's first 16 values, the high halves the others.
    return Blocks(np.concatenate((packed & 15, packed >> 4), axis=-1), scales, minima)


def _halves(cut: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    return np.ascontiguousarray(cut[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)
