"""A session whose passes take the time a table says: another machine's pace, played on this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hexgraft.host.measure.table import LatencyTable
from hexgraft.host.session import CacheRows, Floats, Rows, Session, TopK, Visibility


class VirtualClock:
    """Seconds that pass only when somebody pays them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pay(self, seconds: float) -> None:
        self.now += seconds


class ShapedSession:
    """`session`, each of whose passes costs what `table` says for its rows and fill, and `pay` is asked for
    it: by a virtual clock, or by sleeping. Widths are the table's."""

    def __init__(self, session: Session, table: LatencyTable, pay: Callable[[float], None]) -> None:
        self._session, self._table, self._pay = session, table, pay
        widest = min(table.widths[-1], session.spec.max_width)
        widths = tuple(width for width in table.widths if width <= widest) if table.padded else None
        self.spec = replace(session.spec, widths=widths, max_width=widest)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        rows = self._session.forward(tokens, positions, visible)
        seconds = self._table.seconds(len(tokens), visible.prefix + int(visible.slots.size))
        self._pay(seconds)
        return ShapedRows(rows, self._table.width(len(tokens)), seconds)

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
        self._session.close()


class ShapedRows:
    """Rows of a pass that took `seconds`."""

    def __init__(self, rows: Rows, width: int, seconds: float) -> None:
        self._rows = rows
        self.count, self.width, self.seconds = rows.count, width, seconds

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        return self._rows.topk(k, rows, log_sum=log_sum)

    def logits(self, row: int) -> Floats:
        return self._rows.logits(row)

    def hidden(self, row: int) -> Floats:
        return self._rows.hidden(row)

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        return self._rows.hiddens(rows)
