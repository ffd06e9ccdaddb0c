"""Tensors of checkpoints, which are read in blocks of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def whole(checkpoint: Any, name: str) -> NDArray[np.float32]:
    """A tensor in one piece, by its canonical name."""
    return np.concatenate(list(checkpoint.blocks(name)))
