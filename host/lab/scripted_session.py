"""A target that has decided already: it answers every pass from a known text, without a model.

Under `match` the tokens a run emits do not depend on the drafter. Once a text has been decoded plainly, any
drafter and any tree can be tried against it exactly, at the cost of the drafter alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hexgraft.host.session import CacheRows, Floats, SessionSpec, TopK, Visibility
from hexgraft.models.errors import DecodeError


class ScriptedSession:
    """Says `text[p + 1]` after a row at position p. Only rows on the text's own path are ever asked for: a
    walk goes on where a child carries the token the target emitted. `features` [n, F] are those of the text's
    positions, where a draft head reads them."""

    def __init__(self, spec: SessionSpec, text: Sequence[int], features: Floats | None = None) -> None:
        self.spec = spec
        self._text = list(text)
        self._features = features

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> ScriptedRows:
        return ScriptedRows(self._text, list(positions), self._features)

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None: ...

    def move(self, source: Sequence[int], target: Sequence[int]) -> None: ...

    def reset(self) -> None: ...

    def save(self, count: int) -> CacheRows:
        raise DecodeError("a scripted session has no cache")

    def restore(self, rows: CacheRows) -> None:
        raise DecodeError("a scripted session has no cache")

    def close(self) -> None: ...


class ScriptedRows:
    """Rows that know the one token that follows."""

    def __init__(self, text: Sequence[int], positions: Sequence[int], features: Floats | None = None) -> None:
        self._text, self._positions, self._features = text, positions, features
        self.count = self.width = len(positions)
        self.seconds = 0.0

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        chosen = range(self.count) if rows is None else rows
        ids = [[self._text[self._positions[row] + 1]] for row in chosen]
        return TopK(
            np.array(ids, np.int32), np.zeros((len(ids), 1), np.float32), np.zeros(len(ids), np.float64)
        )

    def logits(self, row: int) -> Floats:
        raise DecodeError("a scripted session has no logits")

    def hidden(self, row: int) -> Floats:
        state: Floats = self.hiddens([row])[0]
        return state

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        if self._features is None:
            raise DecodeError("a scripted session has no hidden states")
        chosen = range(self.count) if rows is None else rows
        found: Floats = self._features[[self._positions[row] for row in chosen]]
        return found
