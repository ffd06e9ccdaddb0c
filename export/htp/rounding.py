"""Floating-point weights to 8 and 4 bits: symmetric, one scale a channel or a block, scales by least
squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int8]

LARGEST = {"w8": 127, "w4": 7}
_LEAST = np.float32(1e-30)
"""Stands in for a zero that is divided by: large enough that its inverse is still a float."""
_ON_GRID = np.float32(1e-6)
"""How far from a multiple of its scale a weight may lie, as a share of its block's largest: some units in the
last place of float32."""
_RATIOS = np.array([5.4, 6.0, 6.6, 7.0, 7.4, 8.0], np.float32)
"""How many steps the largest weight of a 4-bit block may lie away from zero; above 7 it is clipped a
little."""


def round_channels(matrix: Floats, largest: Floats, format: str) -> Ints:
    """Integers of `matrix` [in, out] whose columns' largest magnitudes are `largest` [out]."""
    top = LARGEST[format]
    scaled = matrix * (top / np.maximum(largest, _LEAST))
    return np.clip(np.rint(scaled), -top - 1, top).astype(np.int8)


def channel_scales(largest: Floats, format: str) -> Floats:
    """Scales [out]; an all-zero channel gets 1, as a scale must be positive."""
    scales: Floats = np.where(largest > _LEAST, largest / LARGEST[format], np.float32(1)).astype(np.float32)
    return scales


def round_blocks(blocks: Floats, importance: Floats | None, format: str) -> tuple[Ints, Floats]:
    """Integers [n, block, out] and scales [n, out] of `blocks` [n, block, out].

    Of a few candidate step sizes each block takes the one that, with the scale refitted by least squares,
    leaves the smallest squared error; `importance` [n, block] weighs the rows (the mean square of what they
    are multiplied with).
    """
    if format == "w8":
        return _round_blocks_w8(blocks)
    if exact_blocks(blocks[:1])[2].all():
        integers, exact, fits = exact_blocks(blocks)
        if fits.all():
            return integers, exact
    weights = np.ones((1, 1, 1), np.float32) if importance is None else importance[:, :, None]
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    inverse = 1 / np.maximum(largest, _LEAST)
    best_gain = np.full((blocks.shape[0], 1, blocks.shape[2]), -1, np.float32)
    best_ratio = np.full_like(best_gain, LARGEST["w4"])
    weighted = blocks * weights
    for ratio in _RATIOS:
        steps = np.rint(blocks * (inverse * ratio))
        np.clip(steps, -8, 7, out=steps)
        cross = (weighted * steps).sum(axis=1, keepdims=True)
        norm = (steps * steps * weights).sum(axis=1, keepdims=True)
        gain = cross * cross / np.maximum(norm, _LEAST)
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best_ratio = np.where(better, ratio, best_ratio)
    steps = np.rint(blocks * (inverse * best_ratio))
    np.clip(steps, -8, 7, out=steps)
    cross = (weighted * steps).sum(axis=1)
    norm = (steps * steps * weights).sum(axis=1)
    scales = np.where((norm > 0) & (cross > 0), cross / np.maximum(norm, _LEAST), 1)
    return steps.astype(np.int8), scales.astype(np.float32)


def exact_blocks(blocks: Floats) -> tuple[Ints, Floats, NDArray[np.bool_]]:
    """Integers [n, block, out] and scales [n, out] of `blocks` [n, block, out] that are 4-bit integers times
    a scale already, as those of a checkpoint quantised around zero; and which [n, out] are.

    The largest scale that fits is taken: with it numbers come out as they were but for float32's last bits.
    """
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    bound = largest * _ON_GRID
    found = np.zeros(largest.shape, np.bool_)
    integers, scales = np.zeros(blocks.shape, np.int8), np.ones(largest.shape, np.float32)
    for steps_of_largest in range(1, 9):
        scale = np.maximum(largest / np.float32(steps_of_largest), _LEAST)
        steps = np.rint(blocks / scale)
        fits = (np.abs(steps * scale - blocks) <= bound).all(axis=1, keepdims=True)
        fits &= (steps <= 7).all(axis=1, keepdims=True) & ~found
        integers = np.where(fits, steps, integers).astype(np.int8)
        scales = np.where(fits, scale, scales)
        found |= fits
    scales = np.where(largest > _LEAST, scales, np.float32(1))
    return integers, scales[:, 0], found[:, 0]


def _round_blocks_w8(blocks: Floats) -> tuple[Ints, Floats]:
    """At 8 bits the largest weight sets the step: clipping gains nothing."""
    scales = channel_scales(np.abs(blocks).max(axis=1), "w8")
    return np.clip(np.rint(blocks / scales[:, None]), -128, 127).astype(np.int8), scales


def pack_nibbles(values: Ints) -> NDArray[np.uint8]:
    """Pairs of 4-bit integers in ONNX's order, the first in the low half; an even count."""
    flat = values.reshape(-1).view(np.uint8)
    low, high = flat[0::2] & np.uint8(15), flat[1::2] << np.uint8(4)
    return (low | high).astype(np.uint8)
