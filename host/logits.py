"""Orderings of logits that are the same everywhere: a larger logit first, the lower token id first among
equals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.session import Floats, Ints, TopK
from hexgraft.models.errors import DecodeError

_BLOCK = 128


class NotFinite(DecodeError):
    """A row of logits holds NaN or no finite number at all."""

    def __init__(self, provider: str | None = None) -> None:
        """`provider` is that of the session, where it is known."""
        hint = "compare this session with --backend cpu; overflow in fp16 is the usual cause"
        if provider == "cpu":  # float32 does not overflow by itself: the weights are at fault
            hint = "check the bundle's files by leaving out --no-verify; if they are whole, export again"
        super().__init__("the logits are not finite", hint)


def top_tokens(row: NDArray[np.floating], k: int) -> Ints:
    """The k best token ids of one row [vocab] in the total order (-logit, id), without sorting the row.

    The k-th largest block maximum is a bound that at least k tokens reach, so only those are sorted.
    """
    if k == 1:
        best = int(row.argmax())
        if not np.isfinite(row[best]):
            raise NotFinite
        return np.array([best], np.int32)
    k = min(k, len(row))
    whole = len(row) // _BLOCK * _BLOCK
    maxima = row[:whole].reshape(-1, _BLOCK).max(axis=1)
    if whole < len(row):
        maxima = np.append(maxima, row[whole:].max())
    if not np.isfinite(maxima.max()):
        raise NotFinite
    if k < len(maxima):
        bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
        candidates = np.flatnonzero(row >= bound)
    else:
        candidates = np.arange(len(row))
    order = np.argsort(-row[candidates], kind="stable")[:k]
    return candidates[order].astype(np.int32)


def log_sum_exp(row: Floats) -> float:
    """log of the summed exponentials of one row, the sum in float64."""
    top = row.max()
    return float(top) + float(np.log(np.exp(row - top).sum(dtype=np.float64)))


def topk(rows: NDArray[np.float32], k: int, *, log_sum: bool) -> TopK:
    """`TopK` of logits rows [R, vocab]."""
    ids = np.stack([top_tokens(row, k) for row in rows])
    sums = np.array([log_sum_exp(row) for row in rows]) if log_sum else np.full(len(rows), np.nan)
    return TopK(ids, rows[np.arange(len(rows))[:, None], ids], sums)
