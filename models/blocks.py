"""Row blocks: how big matrices are cut so that reading one never takes the memory of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.checkpoint import BLOCK_BYTES
from hexgraft.models.errors import CheckpointError


def row_ranges(shape: tuple[int, ...], multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Consecutive [start, stop) rows of about BLOCK_BYTES of float32, whole multiples of `multiple`.

    A vector is one range; `multiple` must divide the rows.
    """
    rows = shape[0]
    if len(shape) == 1:
        yield 0, rows
        return
    row_bytes = 4 * int(np.prod(shape[1:], dtype=np.int64))
    step = max(1, BLOCK_BYTES // (row_bytes * multiple)) * multiple
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def require_finite(block: NDArray[np.float32], tensor: str, path: Path) -> NDArray[np.float32]:
    """The block itself; raises CheckpointError naming the tensor if it holds NaN or infinity."""
    if not np.isfinite(block).all():
        raise CheckpointError(
            f"tensor {tensor} of {path} holds NaN or infinite values",
            "the checkpoint is damaged, or was overflowed by a conversion to 16 bits; download it again",
        )
    return block
