"""GPTQ and AWQ matrices of a Hugging Face folder, dequantised in row blocks.

Layouts are those of AutoGPTQ (Frantar et al., arXiv 2210.17323) and AutoAWQ's GEMM kernels (Lin et al.,
arXiv 2306.00978).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.errors import CheckpointError, DamagedError, UnsupportedError
from hexgraft.models.gguf_blocks import BLOCK, Blocks
from hexgraft.models.json_file import Fields

METHODS = ("gptq", "awq")
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ's word of eight columns holds column ORDER[i] in its i-th four bits."""

Read = Callable[[str, slice, slice], NDArray[Any]]
"""Reads rows and columns of one of a matrix's tensors, by its suffix ("qweight", ...)."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How a folder packs its matrices: `bits` a value, one scale and zero for `group` inputs (0: for all).

    GPTQ's first format stores zeros less 1 (`shift`).
    """

    method: str
    bits: int
    group: int
    shift: int

    @property
    def each(self) -> int:
        """Values in one 32-bit word."""
        return 32 // self.bits

    def groups(self, inner: int) -> int:
        return -(-inner // self.group) if self.group else 1

    def shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """The shapes of the tensors that stand for a matrix [out, in]; raises CheckpointError."""
        out, inner = shape
        if out % self.each or inner % self.each:
            raise UnsupportedError(f"a matrix of {out} x {inner} cannot be packed in {self.bits} bits")
        groups = self.groups(inner)
        packed = (inner // self.each, out) if self.method == "gptq" else (inner, out // self.each)
        return {"qweight": packed, "qzeros": (groups, out // self.each), "scales": (groups, out)}

    def consecutive(self, inner: int) -> NDArray[np.intp]:
        """The group of each of `inner` inputs where groups are consecutive."""
        if not self.group:
            return np.zeros(inner, np.intp)
        return np.minimum(np.arange(inner) // self.group, self.groups(inner) - 1)

    def in_blocks(self, inner: int) -> bool:
        """Whether consecutive groups of a matrix of `inner` inputs are made of whole blocks of 32."""
        return self.bits in (4, 8) and inner % BLOCK == 0 and self.group % BLOCK == 0

    def __str__(self) -> str:
        return f"{self.method} int{self.bits}"


def packing_from_hf(values: dict[str, Any], where: str) -> Packing | None:
    """What `quantization_config` declares, None without one; raises CheckpointError for other kinds."""
    settings = values.get("quantization_config")
    if settings is None:
        return None
    if not isinstance(settings, dict):
        raise DamagedError(f"{where}: quantization_config is not an object")
    fields = Fields(settings, f"{where}, quantization_config")
    method = fields.text("quant_method", "unnamed")
    if method not in METHODS:
        raise CheckpointError(
            f"{where}: a checkpoint quantised by {method} is not supported",
            f"supported: {', '.join(METHODS)}; or give the original fp32, fp16 or bf16 folder or a GGUF file",
        )
    bits = fields.integer("bits", 4)
    if bits not in ((2, 4, 8) if method == "gptq" else (4,)):
        raise UnsupportedError(f"{where}: {method} with {bits} bits is not supported")
    if method == "awq" and fields.text("version", "gemm").lower() != "gemm":
        raise CheckpointError(f"{where}: AWQ of version {settings['version']} is not supported", "use gemm")
    size = settings.get("group_size", 128)
    group = 0 if size == -1 else fields.integer("group_size", 128)
    format = fields.text("checkpoint_format", "gptq")
    if method == "gptq" and format not in ("gptq", "gptq_v2"):
        raise CheckpointError(f"{where}: GPTQ in the layout {format} is not supported", "use gptq or gptq_v2")
    return Packing(method, bits, group, 1 if method == "gptq" and format == "gptq" else 0)


def dequantised(
    packing: Packing, read: Read, start: int, stop: int, order: NDArray[np.int32] | None
) -> NDArray[np.float32]:
    """Rows [start, stop) of a matrix [out, in] in float32; both are multiples of `packing.each`.

    `order` [in] names the group of each input where the folder says (g_idx), else groups are consecutive.
    """
    values, zeros, scales = _read(packing, read, start, stop)
    inner, count = values.shape[0], scales.shape[0]
    place: NDArray[np.intp] | NDArray[np.int32] = packing.consecutive(inner)
    if order is not None:
        if order.min(initial=0) < 0 or order.max(initial=0) >= count:
            raise DamagedError(f"a quantised matrix names a group beyond its {count} in g_idx")
        place = order
    rows = values.astype(np.float32)
    rows -= zeros[place]
    with np.errstate(invalid="ignore"):  # a damaged scale; the caller looks for NaN
        rows *= scales[place]
    return np.ascontiguousarray(rows.T)


def as_blocks(packing: Packing, read: Read, start: int, stop: int) -> Blocks:
    """The same rows as the file has them, in blocks of 32 inputs; groups must be consecutive and whole
    blocks (`Packing.in_blocks`)."""
    values, zeros, scales = _read(packing, read, start, stop)
    place = packing.consecutive(values.shape[0])[::BLOCK]
    steps = np.ascontiguousarray(scales.T[:, place])
    minima = -np.ascontiguousarray(zeros.T[:, place]) * steps
    return Blocks(np.ascontiguousarray(values.T).reshape(stop - start, -1, BLOCK), steps, minima)


def zero_points(packing: Packing, read: Read) -> NDArray[np.float32]:
    """Every zero of a matrix, [groups, out]: what is taken off its integers."""
    return _unpack(packing, read("qzeros", slice(None), slice(None)), axis=1) + np.float32(packing.shift)


def _read(
    packing: Packing, read: Read, start: int, stop: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Integers [in, rows], zeros [groups, rows] and scales [groups, rows] of rows [start, stop)."""
    everything, columns = slice(None), slice(start, stop)
    words = slice(start // packing.each, stop // packing.each)
    scales = read("scales", everything, columns).astype(np.float32)
    zeros = _unpack(packing, read("qzeros", everything, words), axis=1)
    if packing.method == "gptq":
        values = _unpack(packing, read("qweight", everything, columns), axis=0)
    else:
        values = _unpack(packing, read("qweight", everything, words), axis=1)
    return values, zeros + np.float32(packing.shift), scales


def _unpack(packing: Packing, words: NDArray[Any], axis: int) -> NDArray[np.uint8]:
    """Values of packed words along an axis, first value in the lowest bits; AWQ's order undone."""
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    shifts = np.arange(packing.each, dtype=np.uint32) * np.uint32(packing.bits)
    if packing.method == "awq":
        shifts = shifts[np.argsort(_AWQ_ORDER)]
    mask = np.uint32((1 << packing.bits) - 1)
    parts = [((unsigned >> shift) & mask).astype(np.uint8) for shift in shifts]
    stacked = np.stack(parts, axis=axis + 1)
    shape = list(unsigned.shape)
    shape[axis] *= packing.each
    return stacked.reshape(shape)
