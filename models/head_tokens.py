"""Which tokens of the target a head of a reduced vocabulary proposes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hexgraft.models.errors import CheckpointError
from hexgraft.models.tensor_files import TensorFiles

_WHOLE = {"I64": np.int64, "I32": np.int32}
_HINT = "take a head that was made for this target"


def read_tokens(
    tensors: TensorFiles, path: Path, vocab: int, rows: int | None
) -> tuple[NDArray[np.int32], NDArray[np.intp] | None]:
    """The ids [rows] a head proposes, ascending, and the order its rows have to be taken in for that, None
    where they lie so.

    `d2t` holds how far the target's id is behind the row's number; `t2d`, where it is there, marks the same
    ids among the target's. Raises CheckpointError unless they are distinct ids of the target.
    """
    kind, shape = tensors.header("d2t")
    if kind not in _WHOLE or len(shape) != 1 or not 0 < shape[0] <= vocab or shape[0] != (rows or shape[0]):
        raise CheckpointError(
            f"d2t of {path} is {kind} {list(shape)}, expected whole numbers [{rows or 'draft_vocab_size'}], "
            f"at most the target's {vocab}",
            _HINT,
        )
    offsets = tensors.read("d2t", slice(0, shape[0])).astype(np.int64)
    ids = np.arange(len(offsets)) + offsets
    if ids.min() < 0 or ids.max() >= vocab:
        raise CheckpointError(f"d2t of {path} leads outside the target's {vocab} tokens", _HINT)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    if (np.diff(ordered) == 0).any():
        raise CheckpointError(f"d2t of {path} leads to a token twice", _HINT)
    if "t2d" in tensors.files:
        _check_marks(tensors, path, vocab, ordered)
    return ordered.astype(np.int32), None if (order == np.arange(len(order))).all() else order


def _check_marks(tensors: TensorFiles, path: Path, vocab: int, ids: NDArray[np.int64]) -> None:
    if tensors.header("t2d")[1] != (vocab,):
        raise CheckpointError(
            f"t2d of {path} has {list(tensors.header('t2d')[1])} entries, not {vocab}", _HINT
        )
    marked = np.flatnonzero(tensors.read("t2d", slice(0, vocab)))
    if not np.array_equal(marked, ids):
        raise CheckpointError(f"t2d and d2t of {path} name different tokens", "download the head again")
