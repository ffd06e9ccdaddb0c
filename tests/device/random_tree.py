"""Trees of random shape."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def random_tree(rng: np.random.Generator, size: int) -> tuple[NDArray[np.bool_], list[int]]:
    """The ancestor mask of a random tree, and its nodes' depths."""
    mask, depths = np.eye(size, dtype=np.bool_), [0] * size
    for node in range(1, size):
        parent = int(rng.integers(0, node))
        mask[node] |= mask[parent]
        depths[node] = depths[parent] + 1
    return mask, depths
