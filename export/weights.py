"""Streams a checkpoint's tensors into a graph's weights file, one after the other.

Memory: a few blocks of `models.checkpoint.BLOCK_BYTES` and three times the largest transposed matrix,
whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hexgraft.export.weights_file import DEPTH, WeightsFile
from hexgraft.models.graph import Graph, Weight

Progress = Callable[[int], None]
Pieces = Iterator[tuple[int, NDArray[Any]]]
"""Parts of a weight in the order of the file, each with its place from the weight's beginning."""


class Tensors(Protocol):
    """Where a graph's weights come from: a checkpoint, or a draft head's."""

    def blocks(self, name: str) -> Iterator[NDArray[np.float32]]: ...


SYNC_BYTES = 256 << 20
"""So much may be lost when an export is killed."""

BUFFERS = DEPTH + 1
"""Of turned matrices."""

_TILE = 16
"""Rows turned into columns at a time: a cache line of float32, filled before it leaves the cache."""


def write_weights(
    graph: Graph,
    checkpoint: Tensors,
    path: Path,
    progress: Progress,
    done: int = 0,
    mark: Callable[[int], None] | None = None,
) -> str:
    """Write the graph's weights at `path` and return the file's hex sha256, as `write_in_order` does."""
    largest = max((weight.nbytes for weight in graph.weights if weight.transposed), default=0)
    # In turn, one filled while the others are written. Not mapped pages of the file: each of those costs a
    # fault of its own.
    buffers = cycle([np.empty(largest // 4, np.float32) for _ in range(BUFFERS)])

    def pieces(weight: Weight) -> Pieces:
        if weight.transposed:
            matrix = _transposed(weight, float_blocks(weight, checkpoint, progress), next(buffers))
            return iter([(0, matrix)])
        return float_pieces(weight, checkpoint, progress)

    return write_in_order(graph, path, pieces, progress, done, mark)


def write_in_order(
    graph: Graph,
    path: Path,
    pieces: Callable[[Weight], Pieces],
    progress: Progress,
    done: int = 0,
    mark: Callable[[int], None] | None = None,
) -> str:
    """Write what `pieces` gives of each weight at its place in the file `path`; the file's hex sha256.

    `progress` is told the bytes of float32 as they are read. The first `done` weights stand there already;
    `mark` is told how many have reached the disk.
    """
    kept = graph.offsets[done] if done else 0
    progress(sum(weight.nbytes for weight in graph.weights[:done]))
    synced = kept
    with WeightsFile(path, graph.weights_size, kept) as file:
        for number in range(done, len(graph.weights)):
            start = graph.offsets[number]
            if mark is not None and start - synced >= SYNC_BYTES:
                file.sync_behind(partial(mark, number))
                synced = start
            for offset, piece in pieces(graph.weights[number]):
                file.write(piece, start + offset)
        return file.digest()


def float_pieces(weight: Weight, checkpoint: Tensors, progress: Progress) -> Pieces:
    """A weight as float32, as it lies in the checkpoint."""
    offset = 0
    for block in float_blocks(weight, checkpoint, progress):
        yield offset, block
        offset += block.nbytes


def float_blocks(weight: Weight, checkpoint: Tensors, progress: Progress) -> Iterator[NDArray[np.float32]]:
    """Row blocks of a weight's parts, scaled; `progress` is told of each once it has been used."""
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
