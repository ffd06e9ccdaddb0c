"""A draft head of a reduced vocabulary, its rows shown in the target's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.bundle import EXPORT_HINT, Bundle
from hexgraft.host.session import Floats, Rows, TopK
from hexgraft.models.errors import BundleError


def head_tokens(bundle: Bundle) -> NDArray[np.int32] | None:
    """The ids the bundle's draft head proposes, ascending; None for all of the vocabulary."""
    head = bundle.model("draft").head
    if head is None or head.tokens is None:
        return None
    file = bundle.file(head.tokens)
    ids = np.fromfile(file, "<i4").astype(np.int32)
    if len(ids) != head.rows or ids[0] < 0 or ids[-1] >= bundle.target.vocab or (np.diff(ids) <= 0).any():
        raise BundleError(f"{file} does not hold {head.rows} ascending tokens", EXPORT_HINT)
    return ids


class HeadRows:
    """Rows of a head with the ids of the target. What the head cannot propose has the logit minus infinity,
    and so the probability 0. Implements `Rows`."""

    def __init__(self, rows: Rows, tokens: NDArray[np.int32], vocab: int) -> None:
        self._rows, self._tokens, self._vocab = rows, tokens, vocab
        self.count, self.width, self.seconds = rows.count, rows.width, rows.seconds

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        found = self._rows.topk(k, rows, log_sum=log_sum)
        return TopK(self._tokens[found.ids], found.logits, found.log_sum)

    def logits(self, row: int) -> Floats:
        whole = np.full(self._vocab, -np.inf, np.float32)
        whole[self._tokens] = self._rows.logits(row)
        return whole

    def hidden(self, row: int) -> Floats:
        return self._rows.hidden(row)

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        return self._rows.hiddens(rows)
