"""A session that keeps count: every pass by its rows and the slots it sees, and the time spent in it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from hexgraft.host.session import CacheRows, Floats, HeadSession, Rows, Session, States, TopK, Visibility
from hexgraft.models.errors import DecodeError

Clock = Callable[[], float]


class Metered:
    """Passes everything on to `session`. `passes` counts by (rows, slots in use); `seconds` is what its
    caller has waited for passes and their rows, by `clock`. With `keep`, closing it leaves the session
    open, so that many drafters may use one in turn."""

    def __init__(self, session: Session, clock: Clock = time.perf_counter, *, keep: bool = False) -> None:
        self._session = session
        self.spec = session.spec
        self._clock = clock
        self._keep = keep
        self.passes: Counter[tuple[int, int]] = Counter()
        self.seconds = 0.0

    def clear(self) -> None:
        """Count from zero again."""
        self.passes.clear()
        self.seconds = 0.0

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        self.passes[len(tokens), visible.prefix + int(visible.slots.size)] += 1
        start = self._clock()
        rows = self._session.forward(tokens, positions, visible)
        self.seconds += self._clock() - start
        return MeteredRows(self, rows)

    def feed(self, states: States) -> None:
        if not isinstance(self._session, HeadSession):
            raise DecodeError("this backend cannot run draft heads", "use --backend cpu or --backend runner")
        self._session.feed(states)

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        self._session.store(rows, slots)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        self._session.move(source, target)

    def reset(self) -> None:
        self._session.reset()

    def save(self, count: int) -> CacheRows:
        return self._session.save(count)

    def restore(self, rows: CacheRows) -> None:
        self._session.restore(rows)

    def close(self) -> None:
        if not self._keep:
            self._session.close()


class MeteredRows:
    """Rows whose fetching counts as part of the pass."""

    def __init__(self, meter: Metered, rows: Rows) -> None:
        self._meter, self._rows = meter, rows
        self.count, self.width, self.seconds = rows.count, rows.width, rows.seconds

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        start = self._meter._clock()
        found = self._rows.topk(k, rows, log_sum=log_sum)
        self._meter.seconds += self._meter._clock() - start
        return found

    def logits(self, row: int) -> Floats:
        start = self._meter._clock()
        found = self._rows.logits(row)
        self._meter.seconds += self._meter._clock() - start
        return found

    def hidden(self, row: int) -> Floats:
        return self._rows.hidden(row)

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        return self._rows.hiddens(rows)
