"""How a matrix lies in 4-bit planes, and how its numbers get there.

ONNX Runtime's MatMulNBits multiplies 4-bit weights with float activations about as fast as it reads them, but
has no such kernel for 8 bits: there it rounds activations to 8 bits at run time, and a row's tokens then
depend on the width of the pass. So 8 bits are two planes of 4, read one after the other along the summed
axis: w = 16 scale (high - 8) + scale low.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from hexgraft.models.gguf_blocks import BLOCK, Blocks

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Packing:
    """A matrix [out, inner] in `planes` of 4 bits, blocks of 32 inputs sharing a scale and a zero point.

    With `rests`, every block adds a number of its own to its weights: the part of a file's block minimum that
    no 4-bit zero point says.
    """

    out: int
    inner: int
    planes: int
    rests: bool = False

    @property
    def blocks(self) -> int:
        """Blocks in a row, over all planes."""
        return self.planes * self.inner // BLOCK

    def tensors(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Type and shape of each stored tensor by its suffix, in the order in which they lie."""
        tensors = {
            "blocks": (int(TensorProto.UINT8), (self.out, self.blocks, BLOCK // 2)),
            "scales": (int(TensorProto.FLOAT), (self.out, self.blocks)),
            "zeros": (int(TensorProto.UINT8), (self.out, -(-self.blocks // 2))),
        }
        if self.rests:
            tensors["rests"] = (int(TensorProto.FLOAT), (self.inner // BLOCK, self.out))
        return tensors

    def places(self) -> dict[str, tuple[int, int]]:
        """Offset and bytes of each tensor, counted from where the matrix begins."""
        places, offset = {}, 0
        for name, (kind, shape) in self.tensors().items():
            length = int(np.prod(shape, dtype=np.int64)) * (4 if kind == TensorProto.FLOAT else 1)
            places[name] = (offset, length)
            offset = -(-(offset + length) // _ALIGN) * _ALIGN
        return places

    @property
    def nbytes(self) -> int:
        return sum(list(self.places().values())[-1])


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows as stored: `blocks` [rows, blocks, 16], `scales` [rows, blocks], `zeros` [rows, bytes], `rests`
    [rows, inner / 32] or None."""

    blocks: Bytes
    scales: Floats
    zeros: Bytes
    rests: Floats | None


def round_rows(rows: Floats, planes: int) -> Blocks:
    """Rows [rows, inner] rounded to the nearest of what 4 bits (from least to greatest) or 8 bits (of one
    scale around zero) hold in each block."""
    cut = rows.reshape(len(rows), -1, BLOCK)
    if planes == 2:
        scales = np.abs(cut).max(-1) / np.float32(127)
        values = np.rint(cut / _divisor(scales)) + 128
        return Blocks(values.astype(np.uint8), scales, -128 * scales)
    least, most = np.minimum(cut.min(-1), 0), np.maximum(cut.max(-1), 0)
    scales = (most - least) / np.float32(15)
    zeros = np.rint(-least / _divisor(scales)[..., 0])
    values = np.clip(np.rint(cut / _divisor(scales)) + zeros[..., None], 0, 15)
    return Blocks(values.astype(np.uint8), scales, -zeros * scales)


def pack_rows(rows: Blocks, packing: Packing) -> Packed:
    """Rows of scale * value + minimum as `packing` stores them.

    Exact but for float32's own rounding: 8 bits where the minimum is -128 scales, 4 bits where it is a whole
    number of scales from -15 to 0, or with rests.
    """
    if packing.planes == 2:
        high, low = rows.values >> np.uint8(4), rows.values & np.uint8(15)
        zeros = np.full((len(high), packing.blocks), 8, np.uint8)
        zeros[:, packing.blocks // 2 :] = 0
        return Packed(
            np.concatenate((_nibbles(high), _nibbles(low)), axis=1),
            np.concatenate((16 * rows.scales, rows.scales), axis=1),
            _nibbles(_even(zeros)),
            None,
        )
    steps = np.clip(np.rint(-rows.minima / _divisor(rows.scales)[..., 0]), 0, 15).astype(np.float32)
    rests = rows.minima + rows.scales * steps if packing.rests else None
    return Packed(_nibbles(rows.values), rows.scales, _nibbles(_even(steps.astype(np.uint8))), rests)


def unpack(packed: Packed, packing: Packing) -> Floats:
    """The numbers [rows, inner] that stored rows stand for."""
    values = np.stack((packed.blocks & 15, packed.blocks >> 4), axis=-1)
    values = values.reshape(len(packed.blocks), -1, BLOCK)
    zeros = np.stack((packed.zeros & 15, packed.zeros >> 4), axis=-1).reshape(len(packed.zeros), -1)
    centred = values.astype(np.float32) - zeros[:, : packing.blocks, None]
    planes = (centred * packed.scales[..., None]).reshape(len(values), packing.planes, -1, BLOCK)
    rows: Floats = planes.sum(axis=1, dtype=np.float32)
    if packed.rests is not None:
        rows += packed.rests[..., None]
    return rows.reshape(len(rows), packing.inner)


def _divisor(scales: Floats) -> Floats:
    """Scales to divide by: a block of zeros has none."""
    return np.where(scales == 0, np.float32(1), scales)[..., None]


def _nibbles(values: Bytes) -> Bytes:
    packed: Bytes = np.bitwise_or(values[..., 0::2], values[..., 1::2] << np.uint8(4))
    return packed


def _even(zeros: Bytes) -> Bytes:
    return np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
