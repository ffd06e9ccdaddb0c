"""Streams a checkpoint's tensors into a graph's weights file, one after the other.

Memory: a few blocks of `models.checkpoint.BLOCK_BYTES` and the largest transposed matrix, whatever the size
of the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.checkpoint import Checkpoint
from hexgraft.models.graph import Graph, Weight

Progress = Callable[[int], None]
_TILE = 32
"""Rows turned into columns at a time: few enough that a cache line is filled before it leaves the cache."""


def write_weights(graph: Graph, checkpoint: Checkpoint, folder: Path, progress: Progress) -> None:
    """Write `graph.weights_file` into `folder`; `progress` is told the bytes as they are written.

    The file's space is reserved first, so that a full disk fails at once.
    """
    largest = max((weight.nbytes for weight in graph.weights if weight.transposed), default=0)
    # One buffer for all, not mapped pages of the file: each of those costs a fault of its own.
    buffer = np.empty(largest // 4, np.float32)
    with (folder / graph.weights_file).open("w+b", buffering=0) as stream:
        os.posix_fallocate(stream.fileno(), 0, graph.weights_size)
        for weight, offset in zip(graph.weights, graph.offsets, strict=True):
            blocks = _blocks(weight, checkpoint, progress)
            if weight.transposed:
                blocks = iter([_transposed(weight, blocks, buffer)])
            for block in blocks:
                _write(stream.fileno(), block, offset)
                offset += block.nbytes


def _blocks(weight: Weight, checkpoint: Checkpoint, progress: Progress) -> Iterator[NDArray[np.float32]]:
    for part in weight.parts:
        for block in checkpoint.blocks(part.tensor):
            yield block if part.scale == 1.0 else block * np.float32(part.scale)
            progress(block.nbytes)


def _transposed(
    weight: Weight, blocks: Iterator[NDArray[np.float32]], buffer: NDArray[np.float32]
) -> NDArray[np.float32]:
    matrix = buffer[: weight.nbytes // 4].reshape(weight.shape)
    row = 0
    for block in blocks:
        for start in range(0, len(block), _TILE):
            tile = block[start : start + _TILE]
            matrix[:, row : row + len(tile)] = tile.T
            row += len(tile)
    return matrix


def _write(file: int, block: NDArray[np.float32], offset: int) -> None:
    data = np.ascontiguousarray(block).data.cast("B")
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
