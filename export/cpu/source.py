"""Where the blocks of a packed matrix come from: a file that has them already, or its numbers, rounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hexgraft.export.cpu.packing import round_rows
from hexgraft.export.weights import Tensors
from hexgraft.models.gguf_blocks import Blocks
from hexgraft.models.gguf_checkpoint import GgufCheckpoint
from hexgraft.models.graph import Part
from hexgraft.models.hf_checkpoint import HfCheckpoint
from hexgraft.models.vocabulary import FittedDraft


def has_blocks(checkpoint: Tensors, tensor: str, bits: int) -> bool:
    """Whether the file holds a tensor in blocks of just so many bits."""
    return _with_blocks(checkpoint, tensor, bits) is not None


def has_minima(checkpoint: Tensors, tensor: str, bits: int) -> bool:
    """Whether these blocks have minima that are no whole number of scales."""
    found = _with_blocks(checkpoint, tensor, bits)
    return found is not None and found.block_minima(tensor)


def read_part(checkpoint: Tensors, part: Part, bits: int, *, minima: bool = True) -> Iterator[Blocks]:
    """Row blocks of a tensor times the part's scale: the file's own where it has such, else rounded. Without
    `minima`, those that `has_minima` are rounded anew."""
    scale = np.float32(part.scale)
    found = _with_blocks(checkpoint, part.tensor, bits)
    if found is None or (not minima and found.block_minima(part.tensor)):
        for rows in checkpoint.blocks(part.tensor):
            yield round_rows(rows * scale, bits)
        return
    for blocks in found.quantised(part.tensor):
        yield Blocks(blocks.values, blocks.scales * scale, blocks.minima * scale)


def _with_blocks(checkpoint: Tensors, tensor: str, bits: int) -> GgufCheckpoint | HfCheckpoint | None:
    if isinstance(checkpoint, FittedDraft) and tensor not in ("embed", "head"):
        checkpoint = checkpoint.inner
    if not isinstance(checkpoint, GgufCheckpoint | HfCheckpoint):
        return None
    return checkpoint if checkpoint.block_bits(tensor) == bits else None
