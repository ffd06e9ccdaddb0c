"""Streams a checkpoint's tensors into a packed graph's weights file, in row blocks.

Memory: a few blocks of `models.checkpoint.BLOCK_BYTES`, and the scales of one matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hexgraft.export.cpu.graph import PackedGraph
from hexgraft.export.cpu.packing import Packed, Packing, pack_rows
from hexgraft.export.cpu.source import read_part
from hexgraft.export.weights import Pieces, Progress, Tensors, float_pieces, write_in_order
from hexgraft.models.graph import Weight


def write_packed(
    graph: PackedGraph,
    checkpoint: Tensors,
    path: Path,
    progress: Progress,
    done: int = 0,
    mark: Callable[[int], None] | None = None,
) -> str:
    """As `export.weights.write_weights`."""

    def pieces(weight: Weight) -> Pieces:
        packing = graph.packings.get(weight.name)
        if packing is None:
            return float_pieces(weight, checkpoint, progress)
        return _packed(weight, packing, checkpoint, progress)

    return write_in_order(graph, path, pieces, progress, done, mark)


def _packed(weight: Weight, packing: Packing, checkpoint: Tensors, progress: Progress) -> Pieces:
    """The pieces of a matrix in the order of the file: all blocks first, then what belongs to them."""
    rest: list[Packed] = []
    offset = 0
    for part in weight.parts:
        for rows in read_part(checkpoint, part, packing.bits, minima=packing.rests):
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
