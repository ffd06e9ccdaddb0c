"""Orderings of logits that are the same everywhere: a larger logit first, the lower token id first among
equals."""

from __future__ import annotations

import math

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


def top_token(row: NDArray[np.floating]) -> int:
    """The best token id of one row [vocab]."""
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise NotFinite
    return best


def top_tokens(row: NDArray[np.floating], k: int) -> Ints:
    """The k best token ids of one row [vocab] in the total order (-logit, id), without sorting the row.

    The k-th largest block maximum is a bound that at least k tokens reach, so only those are sorted.
    """
    if k == 1:
        return np.array([top_token(row)], np.int32)
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
    # Row by row, number by number if it is one: after a pass has swept the processor's caches, much of NumPy
    # takes ten times as long as it does in a loop.
    count, best = rows.shape[0], min(k, rows.shape[1])
    ids, logits = np.empty((count, best), np.int32), np.empty((count, best), np.float32)
    sums = np.empty(count)
    for place, row in enumerate(rows):
        if best == 1:
            ids[place, 0] = token = top_token(row)
            logits[place, 0] = row[token]
        else:
            ids[place] = tokens = top_tokens(row, best)
            logits[place] = row.take(tokens)
        sums[place] = log_sum_exp(row) if log_sum else math.nan
    return TopK(ids, logits, sums)
