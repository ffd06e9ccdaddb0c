"""Streams a checkpoint's tensors into a packed graph's weights file, in row blocks.

Memory: a few blocks of `models.checkpoint.BLOCK_BYTES`, and the scales of one matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hexgraft.export.cpu.graph import PackedGraph
from hexgraft.export.cpu.packing import Packed, Packing, pack_rows
from hexgraft.export.cpu.source import read_part
from hexgraft.export.weights import SYNC_BYTES, Tensors
from hexgraft.export.weights_file import WeightsFile
from hexgraft.models.graph import Weight

Progress = Callable[[int], None]


def write_packed(
    graph: PackedGraph,
    checkpoint: Tensors,
    path: Path,
    progress: Progress,
    done: int = 0,
    mark: Callable[[int], None] | None = None,
) -> str:
    """As `export.weights.write_weights`; `progress` is told the bytes of float32 that were read."""
    kept = graph.offsets[done] if done else 0
    progress(sum(weight.nbytes for weight in graph.weights[:done]))
    synced = kept
    with WeightsFile(path, graph.weights_size, kept) as file:
        for number in range(done, len(graph.weights)):
            weight, start = graph.weights[number], graph.offsets[number]
            if mark is not None and start - synced >= SYNC_BYTES:
                file.sync()
                mark(number)
                synced = start
            packing = graph.packings.get(weight.name)
            pieces = (
                _packed(weight, packing, checkpoint, progress)
                if packing is not None
                else _floats(weight, checkpoint, progress)
            )
            for offset, piece in pieces:
                file.write(piece, start + offset)
        return file.digest()


def _floats(weight: Weight, checkpoint: Tensors, progress: Progress) -> Iterator[tuple[int, NDArray[Any]]]:
    offset = 0
    for part in weight.parts:
        for block in checkpoint.blocks(part.tensor):
            yield offset, block * np.float32(part.scale)
            offset += block.nbytes
            progress(block.nbytes)


def _packed(
    weight: Weight, packing: Packing, checkpoint: Tensors, progress: Progress
) -> Iterator[tuple[int, NDArray[Any]]]:
    """The pieces of a matrix in the order of the file: all blocks first, then what belongs to them."""
    rest: list[Packed] = []
    offset = 0
    for part in weight.parts:
        for rows in read_part(checkpoint, part, packing.bits):
            packed = pack_rows(rows, packing)
            yield offset, packed.blocks
            offset += packed.blocks.nbytes
            rest.append(Packed(packed.blocks[:0], packed.scales, packed.zeros, packed.rests))
            progress(4 * rows.values.size)
    places = packing.places()
    yield places["scales"][0], np.concatenate([one.scales for one in rest])
    if "zeros" in places:
        yield places["zeros"][0], np.concatenate([one.zeros for one in rest if one.zeros is not None])
    if "rests" in places:
        rests = np.concatenate([one.rests for one in rest if one.rests is not None])
        yield places["rests"][0], np.ascontiguousarray(rests.T)
