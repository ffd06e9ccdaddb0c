"""How a matrix lies in blocks of 4 or 8 bits, and how its numbers get there.

ONNX Runtime's MatMulNBits multiplies 4-bit weights with float activations about as fast as it reads them, but
has no such kernel for 8 bits. There, with float activations, 8 bits are two planes of 4, read one after the
other along the summed axis: w = 16 scale (high - 8) + scale low.
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
    """A matrix [out, inner] of `bits` 4 or 8, blocks of 32 inputs sharing a scale and a zero point, to be
    multiplied with activations that stay float or are `rounded`.

    With `rests`, every block adds a number of its own to its weights: the part of a file's block minimum that
    no 4-bit zero point says. It is multiplied by the sum of the block's inputs: in a product of its own, or,
    among rounded activations, as further inputs of the same product, at 8 bits.
    """

    out: int
    inner: int
    bits: int
    rounded: bool = False
    rests: bool = False

    @property
    def stored_bits(self) -> int:
        """Bits of a stored value: 8 bits are two values where activations are float."""
        return self.bits if self.rounded else 4

    @property
    def planes(self) -> int:
        """How often the product reads its inputs."""
        return self.bits // self.stored_bits

    @property
    def sums(self) -> int:
        """Further inputs, sums of blocks padded to whole blocks; the product reads them twice."""
        return -(-self.inner // BLOCK**2) * BLOCK if self.rests and self.rounded else 0

    @property
    def width(self) -> int:
        """Inputs of the product."""
        return self.planes * self.inner + 2 * self.sums

    def tensors(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Type and shape of each stored tensor by its suffix, in the order in which they lie."""
        blocks = self.width // BLOCK
        tensors = {
            "blocks": (int(TensorProto.UINT8), (self.out, blocks, BLOCK * self.stored_bits // 8)),
            "scales": (int(TensorProto.FLOAT), (self.out, blocks)),
        }
        if self.stored_bits == 4:  # 8 bits have their zero at 128, which need not be said
            tensors["zeros"] = (int(TensorProto.UINT8), (self.out, -(-blocks // 2)))
        if self.rests and not self.rounded:
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
    """Rows as stored: `blocks` [rows, blocks, bytes], `scales` [rows, blocks], `zeros` [rows, bytes] (None at
    8 bits), `rests` [rows, inner / 32] or None."""

    blocks: Bytes
    scales: Floats
    zeros: Bytes | None = None
    rests: Floats | None = None


def round_rows(rows: Floats, bits: int) -> Blocks:
    """Rows [rows, inner] rounded to the nearest of what 4 bits (from least to greatest) or 8 bits (of one
    scale around zero) hold in each block."""
    cut = rows.reshape(len(rows), -1, BLOCK)
    if bits == 8:
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
    number of scales from -15 to 0. With rests any minimum is exact, or good to 1/254 of the greatest rest of
    32 blocks where they are further inputs.
    """
    if packing.bits == 8:
        return Packed(rows.values, rows.scales) if packing.rounded else _planes(rows)
    steps = np.clip(np.rint(-rows.minima / _divisor(rows.scales)[..., 0]), 0, 15).astype(np.float32)
    packed = Packed(_nibbles(rows.values), rows.scales, _nibbles(_even(steps.astype(np.uint8))))
    if not packing.rests:
        return packed
    rests = rows.minima + rows.scales * steps
    if not packing.rounded:
        return Packed(packed.blocks, packed.scales, packed.zeros, rests)
    padded = np.pad(rests, ((0, 0), (0, packing.sums - rests.shape[1])))
    more = _planes(round_rows(padded, 8))
    zeros = np.concatenate((steps.astype(np.uint8), _plane_zeros(more)), axis=1)
    return Packed(
        np.concatenate((packed.blocks, more.blocks), axis=1),
        np.concatenate((packed.scales, more.scales), axis=1),
        _nibbles(_even(zeros)),
    )


def unpack(packed: Packed, packing: Packing) -> Floats:
    """The numbers [rows, inner] that stored rows stand for."""
    count = len(packed.blocks)
    if packed.zeros is None:
        return ((packed.blocks.astype(np.float32) - 128) * packed.scales[..., None]).reshape(count, -1)
    values = np.stack((packed.blocks & 15, packed.blocks >> 4), axis=-1).reshape(count, -1, BLOCK)
    zeros = np.stack((packed.zeros & 15, packed.zeros >> 4), axis=-1).reshape(count, -1)
    plain = (values.astype(np.float32) - zeros[:, : values.shape[1], None]) * packed.scales[..., None]
    blocks = packing.inner // BLOCK
    rows: Floats = plain[:, : packing.planes * blocks].reshape(count, packing.planes, blocks, BLOCK).sum(1)
    rests = packed.rests
    if packing.sums:
        rests = plain[:, blocks:].reshape(count, 2, -1).sum(1)[:, :blocks]
    if rests is not None:
        rows = rows + rests[..., None]
    return rows.reshape(count, packing.inner)


def _planes(rows: Blocks) -> Packed:
    """8 bits as high and low halves, one after the other."""
    packed = Packed(
        np.concatenate((_nibbles(rows.values >> np.uint8(4)), _nibbles(rows.values & np.uint8(15))), axis=1),
        np.concatenate((16 * rows.scales, rows.scales), axis=1),
    )
    return Packed(packed.blocks, packed.scales, _nibbles(_even(_plane_zeros(packed))))


def _plane_zeros(planes: Packed) -> Bytes:
    """8 for every high block, 0 for every low one."""
    rows, count = len(planes.scales), planes.scales[0].size
    return np.repeat(np.array([[8] * (count // 2) + [0] * (count // 2)], np.uint8), rows, axis=0)


def _divisor(scales: Floats) -> Floats:
    """Scales to divide by: a block of zeros has none."""
    return np.where(scales == 0, np.float32(1), scales)[..., None]


def _nibbles(values: Bytes) -> Bytes:
    packed: Bytes = np.bitwise_or(values[..., 0::2], values[..., 1::2] << np.uint8(4))
    return packed


def _even(zeros: Bytes) -> Bytes:
    return np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
