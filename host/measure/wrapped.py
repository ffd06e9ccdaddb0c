"""A session around another one, for those that change or count its passes alone."""

from __future__ import annotations

from collections.abc import Sequence

from hexgraft.host.session import CacheRows, Floats, HeadSession, Rows, Session, States, TopK
from hexgraft.models.errors import DecodeError


class Wrapped:
    """Everything but `forward`, which is the heir's."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.spec = session.spec

    def feed(self, states: States) -> None:
        if not isinstance(self.session, HeadSession):
            raise DecodeError(
                "this backend cannot run draft heads", "use --backend cpu, htp-sim, runner or device"
            )
        self.session.feed(states)

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        self.session.store(rows, slots)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        self.session.move(source, target)

    def reset(self) -> None:
        self.session.reset()

    def save(self, count: int) -> CacheRows:
        return self.session.save(count)

    def restore(self, rows: CacheRows) -> None:
        self.session.restore(rows)

    def close(self) -> None:
        self.session.close()


class WrappedRows:
    """The rows of a pass, as they are."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.count, self.width, self.seconds = rows.count, rows.width, rows.seconds

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        return self._rows.topk(k, rows, log_sum=log_sum)

    def logits(self, row: int) -> Floats:
        return self._rows.logits(row)

    def hidden(self, row: int) -> Floats:
        return self._rows.hidden(row)

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        return self._rows.hiddens(rows)
