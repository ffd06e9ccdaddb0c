"""A session whose passes take the time a table says: another machine's pace, played on this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hexgraft.host.measure.table import LatencyTable
from hexgraft.host.measure.wrapped import Wrapped, WrappedRows
from hexgraft.host.session import Rows, Session, Visibility


class VirtualClock:
    """Seconds that pass only when somebody pays them."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pay(self, seconds: float) -> None:
        self.now += seconds


class ShapedSession(Wrapped):
    """`session`, each of whose passes costs what `table` says for its rows and fill, and `pay` is asked for
    it: by a virtual clock, or by sleeping. Widths are the table's."""

    def __init__(self, session: Session, table: LatencyTable, pay: Callable[[float], None]) -> None:
        super().__init__(session)
        self._table, self._pay = table, pay
        widest = min(table.widths[-1], session.spec.max_width)
        widths = tuple(width for width in table.widths if width <= widest) if table.padded else None
        self.spec = replace(session.spec, widths=widths, max_width=widest)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> Rows:
        rows = WrappedRows(self.session.forward(tokens, positions, visible))
        rows.width = self._table.width(len(tokens))
        rows.seconds = self._table.seconds(len(tokens), visible.prefix + int(visible.slots.size))
        self._pay(rows.seconds)
        return rows
