"""A session whose logits are a table row chosen by the token alone: trees over it can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from fake_session import FakeModel, FakeRows, FakeSession
from numpy.typing import NDArray

from hexgraft.host.session import Visibility


class TableSession(FakeSession):
    """`table` [vocab, vocab]: row t holds the logits after token t, or their exponentials with `shares`."""

    def __init__(self, table: NDArray[np.floating], *, shares: bool = False, capacity: int = 640) -> None:
        vocab = len(table)
        super().__init__(FakeModel(vocab=vocab, hidden=2, layers=1), capacity=capacity)
        with np.errstate(divide="ignore"):
            self._table = np.log(table) if shares else np.asarray(table, np.float64)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> FakeRows:
        super().forward(tokens, positions, visible)
        return FakeRows(self._table[list(tokens)])
