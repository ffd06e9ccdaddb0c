"""Streams a checkpoint's tensors into a graph's weights file, block by block, without holding one whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hexgraft.models.checkpoint import Checkpoint
from hexgraft.models.graph import Graph, Weight

Progress = Callable[[int], None]


def write_weights(graph: Graph, checkpoint: Checkpoint, folder: Path, progress: Progress) -> None:
    """Write `graph.weights_file` into `folder`; `progress` is told the bytes as they are written.

    The file's space is reserved first, so that a full disk fails at once and not inside a mapped page.
    """
    with (folder / graph.weights_file).open("w+b") as stream:
        os.posix_fallocate(stream.fileno(), 0, graph.weights_size)
        for weight, offset in zip(graph.weights, graph.offsets, strict=True):
            view = np.memmap(stream, np.float32, "r+", offset=offset, shape=weight.shape)
            _write(weight, view, checkpoint, progress)
            view.flush()
            del view


def _write(weight: Weight, view: np.memmap, checkpoint: Checkpoint, progress: Progress) -> None:
    row = 0
    for part in weight.parts:
        for block in checkpoint.blocks(part.tensor):
            scaled = block if part.scale == 1.0 else block * np.float32(part.scale)
            if weight.transposed:
                view[:, row : row + len(block)] = scaled.T
            else:
                view[row : row + len(block)] = scaled
            row += len(block)
            progress(block.nbytes)
