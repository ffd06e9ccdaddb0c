"""A session that keeps count: every pass by its rows and the slots it sees, and the time spent in it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from hexgraft.host.measure.wrapped import Wrapped, WrappedRows
from hexgraft.host.session import Floats, Rows, Session, TopK, Visibility

Clock = Callable[[], float]


class Metered(Wrapped):
    """Passes everything on to `session`. `passes` counts by (rows, slots in use); `seconds` is what its
    caller has waited for passes and their rows, by `clock`. With `keep`, closing it leaves the session
    open, so that many drafters may use one in turn."""

    def __init__(self, session: Session, clock: Clock = time.perf_counter, *, keep: bool = False) -> None:
        super().__init__(session)
        self.clock = clock
        self._keep = keep
        self.passes: Counter[tuple[int, int]] = Counter()
        self.seconds = 0.0

    def clear(self) -> None:
        """Count from zero again."""
        self.passes.clear()
        self.seconds = 0.0

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        self.passes[len(tokens), visible.prefix + int(visible.slots.size)] += 1
        start = self.clock()
        rows = self.session.forward(tokens, positions, visible)
        self.seconds += self.clock() - start
        return MeteredRows(self, rows)

    def close(self) -> None:
        if not self._keep:
            self.session.close()


class MeteredRows(WrappedRows):
    """Rows whose fetching counts as part of the pass."""

    def __init__(self, meter: Metered, rows: Rows) -> None:
        super().__init__(rows)
        self._meter = meter

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        start = self._meter.clock()
        found = super().topk(k, rows, log_sum=log_sum)
        self._meter.seconds += self._meter.clock() - start
        return found

    def logits(self, row: int) -> Floats:
        start = self._meter.clock()
        found = super().logits(row)
        self._meter.seconds += self._meter.clock() - start
        return found
