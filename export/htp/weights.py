"""Quantised weights of one model in one growing file, made from the bundle's float32 weights in row blocks.

Every width and every variant of a graph refers to the same bytes, and no matrix is ever in memory whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from hexgraft.export.htp.network import Network, external, external_tensor
from hexgraft.export.htp.ranges import Encoding
from hexgraft.export.htp.rounding import (
    Floats,
    channel_scales,
    exact_blocks,
    pack_nibbles,
    round_blocks,
    round_channels,
)
from hexgraft.models.errors import ExportError

_CHUNK = 1 << 20
"""Numbers read at a time: small enough that a chunk stays in the processor's cache while it is rounded."""
_PAGE = 4096
_TYPES = {"w8": TensorProto.INT8, "w4": TensorProto.INT4}


@dataclass(frozen=True, slots=True)
class Stored:
    """A quantised matrix: its three initializers (integers, scales, zero points) and the attributes of its
    DequantizeLinear.

    The zero points are always written out: without them the QNN provider computes 4-bit weights silently
    wrong.
    """

    tensors: tuple[TensorProto, TensorProto, TensorProto]
    axis: int
    block: int
    nbytes: int


class QuantisedWeights:
    """The file `name` beside the model's own weights; it holds each matrix once a format."""

    def __init__(
        self, network: Network, name: str, progress: Callable[[int], None] = lambda count: None
    ) -> None:
        self.path = network.folder / name
        self._network = network
        self._progress = progress
        self._stored: dict[tuple[str, str, int, int], Stored] = {}
        self._end = 0
        self.path.write_bytes(b"")

    def get(
        self,
        initializer: str,
        format: str,
        axis: int,
        block: int,
        importance: NDArray[np.float64] | None = None,
        balance: Floats | None = None,
    ) -> Stored:
        """The matrix of `initializer` as `format`, summed along `axis`; quantised when first asked for.

        One scale for each index of the other axis if `block` is 0, otherwise one for each `block` of them.
        `importance` [in] weighs the errors, `balance` [in] multiplies the rows first (axis 0 only); the same
        matrix must always come with the same ones.
        """
        key = (initializer, format, axis, block)
        if key not in self._stored:
            self._stored[key] = self._quantise(*key, importance, balance)
        return self._stored[key]

    def table(self, initializer: str, encoding: Encoding) -> TensorProto:
        """The table of `initializer` as 16-bit integers of one encoding, for chips that gather nothing
        else."""
        matrix, start = _Matrix(self._network, initializer), self._end
        with self.path.open("r+b") as stream:
            stream.seek(start)
            for _, rows in matrix.chunks():
                self._progress(rows.nbytes)
                stored = np.rint(rows / encoding.scale) + np.float32(encoding.zero)
                stream.write(np.clip(stored, 0, 65535).astype(np.uint16).tobytes())
            length = stream.tell() - start
        self._end = -(-(start + length) // _PAGE) * _PAGE
        name = f"{initializer}:w16"
        return external_tensor(name, TensorProto.UINT16, matrix.shape, self.path.name, start, length)

    def _quantise(
        self,
        initializer: str,
        format: str,
        axis: int,
        block: int,
        importance: NDArray[np.float64] | None,
        balance: Floats | None,
    ) -> Stored:
        matrix = _Matrix(self._network, initializer, balance)
        inner, outer = matrix.shape[axis], matrix.shape[1 - axis]
        if block and inner % block:
            raise ExportError(
                f"--block {block} does not divide the {inner} inputs of {initializer}",
                "choose a smaller --block, or --block 0 for one scale a channel",
            )
        if format == "w4" and outer * inner % 2:
            raise ExportError(f"{initializer} has an odd count of weights, which 4 bits cannot store")
        start = self._end
        name = f"{initializer}:{format}:{axis}" + (f":{block}" if block else "")
        with self.path.open("r+b") as stream:
            stream.seek(start)
            if block:
                scales = self._write_blocks(stream, matrix, axis, format, block, importance)
            else:
                scales = self._write_channels(stream, matrix, axis, format)
            length = stream.tell() - start
            scales_at = -(-stream.tell() // _PAGE) * _PAGE
            stream.seek(scales_at)
            stream.write(scales.tobytes())
            zeros_at = -(-stream.tell() // _PAGE) * _PAGE
            zeros_length = scales.size if format == "w8" else -(-scales.size // 2)
            os.truncate(stream.fileno(), zeros_at + zeros_length)
        self._end = -(-(zeros_at + zeros_length) // _PAGE) * _PAGE
        file, kind = self.path.name, _TYPES[format]
        tensors = (
            external_tensor(name, kind, matrix.shape, file, start, length),
            external_tensor(name + ":scale", TensorProto.FLOAT, scales.shape, file, scales_at, scales.nbytes),
            external_tensor(name + ":zero", kind, scales.shape, file, zeros_at, zeros_length),
        )
        return Stored(tensors, axis if block else 1 - axis, block, length + scales.nbytes // 2)

    def _write_channels(self, stream, matrix: _Matrix, axis: int, format: str) -> Floats:  # type: ignore[no-untyped-def]
        largest = matrix.largest(axis)
        for start, rows in matrix.chunks():
            self._progress(rows.nbytes)
            if axis == 0:
                values = round_channels(rows, largest, format)
            else:
                values = round_channels(rows.T, largest[start : start + len(rows)], format).T
            stream.write(values.tobytes() if format == "w8" else pack_nibbles(np.ascontiguousarray(values)))
        return channel_scales(largest, format)

    def _write_blocks(  # type: ignore[no-untyped-def]
        self,
        stream,
        matrix: _Matrix,
        axis: int,
        format: str,
        block: int,
        importance: NDArray[np.float64] | None,
    ) -> Floats:
        """Integers to `stream`; returns scales [in / block, out] (axis 0) or [out, in / block] (axis 1)."""
        weight = None if importance is None else _importance(importance).reshape(-1, block)
        scales = []
        for start, rows in matrix.chunks(block if axis == 0 else 1):
            self._progress(rows.nbytes)
            if axis == 0:
                blocks = rows.reshape(-1, block, rows.shape[1])
                part = None if weight is None else weight[start // block : start // block + len(blocks)]
                values, found = round_blocks(blocks, part, format)
                values = values.reshape(rows.shape)
            else:
                count = rows.shape[1] // block
                blocks = rows.reshape(len(rows), count, block).transpose(1, 2, 0)
                values, found = round_blocks(blocks, weight, format)
                values, found = np.ascontiguousarray(values.transpose(2, 0, 1)), found.T
            stream.write(values.tobytes() if format == "w8" else pack_nibbles(values))
            scales.append(found)
        return np.ascontiguousarray(np.concatenate(scales))


def is_exact(network: Network, initializer: str, block: int) -> bool:
    """Whether a matrix [in, out] is 4-bit integers times a scale for each `block` inputs already, as its
    first rows tell."""
    matrix = _Matrix(network, initializer)
    if not block or matrix.shape[0] % block:
        return False
    _, rows = next(matrix.chunks(block))
    return bool(exact_blocks(rows[:block][None])[2].all())


class _Matrix:
    """A float32 initializer, read from its file in chunks of whole rows. Plain reads, not a map: mapped pages
    would count as memory of ours."""

    def __init__(self, network: Network, initializer: str, balance: Floats | None = None) -> None:
        tensor = network.initializers[initializer]
        place = external(tensor)
        if place is None or len(tensor.dims) != 2:
            raise ExportError(f"{initializer} is no external matrix")
        self.shape: tuple[int, int] = (tensor.dims[0], tensor.dims[1])
        self._file, self._offset = network.folder / place[0], place[1]
        self._balance = balance

    def chunks(self, multiple: int = 1) -> Iterator[tuple[int, Floats]]:
        """(first row, rows [n, columns]), n a multiple of `multiple` where the matrix's height is."""
        rows, columns = self.shape
        step = max(1, _CHUNK // (columns * multiple)) * multiple
        with self._file.open("rb") as stream:
            stream.seek(self._offset)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                raw = np.fromfile(stream, np.float32, count * columns)
                chunk = raw.reshape(count, columns)
                if self._balance is not None:
                    chunk = chunk * self._balance[start : start + count, None]
                yield start, chunk

    def largest(self, axis: int) -> Floats:
        """Largest magnitude along `axis`."""
        if axis == 1:
            ends: Floats = np.concatenate([np.abs(rows).max(axis=1) for _, rows in self.chunks()])
            return ends
        largest = np.zeros(self.shape[1], np.float32)
        for _, rows in self.chunks():
            np.maximum(largest, np.abs(rows).max(axis=0), out=largest)
        return largest


def _importance(squares: NDArray[np.float64]) -> Floats:
    """Mean squares as weights of a fit; a floor keeps inputs that the calibration never moved from being
    free."""
    weights: Floats = (squares + squares.mean() * 1e-2 + 1e-30).astype(np.float32)
    return weights


def table_range(network: Network, initializer: str) -> tuple[float, float]:
    """Smallest and largest number of a float32 matrix."""
    ends = [(float(rows.min()), float(rows.max())) for _, rows in _Matrix(network, initializer).chunks()]
    return min(low for low, _ in ends), max(high for _, high in ends)


def row_scales(network: Network, initializer: str) -> Floats:
    """Scales [rows, 1] of a table quantised to 8 bits row by row."""
    return channel_scales(_Matrix(network, initializer).largest(1), "w8")[:, None]


def read_vector(network: Network, initializer: str) -> Floats:
    """A float32 initializer as it is; for norms and biases."""
    tensor = network.initializers[initializer]
    place = external(tensor)
    if place is None:
        array: Floats = numpy_helper.to_array(tensor)
        return array
    file, offset, length = place
    with (network.folder / file).open("rb") as stream:
        stream.seek(offset)
        numbers: Floats = np.fromfile(stream, np.float32, length // 4)
        return numbers.reshape(tuple(tensor.dims))
