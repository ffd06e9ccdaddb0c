"""The rows of a pass a runner made, most of which stay where they are until somebody asks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from hexgraft.host.runner.wire import BULK_LIMIT, RunnerLost
from hexgraft.host.session import Floats, TopK
from hexgraft.models.errors import DecodeError

if TYPE_CHECKING:
    from hexgraft.host.runner.session import RunnerSession

T = TypeVar("T")
_EAGER_K = 64
_EAGER_ROWS = 64


class Passed(msgspec.Struct, frozen=True):
    count: int
    width: int
    seconds: float
    total: float


@dataclass(frozen=True, slots=True)
class Want:
    """The top rows a kind of pass was asked for last time: all rows, or the last one."""

    k: int
    log_sum: bool
    last: bool


class RunnerRows:
    """The rows of one pass, most of which stay where they are."""

    def __init__(self, session: RunnerSession, number: int, kind: tuple[bool, bool], passed: Passed) -> None:
        self._session = session
        self._number = number
        self.kind = kind
        self._sent: TopK | None = None
        self._sent_rows: dict[int, int] = {}
        self._asked = False
        self.count = passed.count
        self.width = passed.width
        self.seconds = passed.seconds
        self.total = passed.total
        """Time the runner took for the whole pass, filling its inputs included."""

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        chosen = list(range(self.count)) if rows is None else [int(row) for row in rows]
        self._check(chosen)
        k = min(k, self._session.spec.logits)
        self._asked = True
        if (ready := self._ready(k, chosen, log_sum)) is not None:
            return ready
        last = self.count > 1 and chosen == [self.count - 1]
        if k <= _EAGER_K and (last or self.count <= _EAGER_ROWS):
            # Rows are asked for one by one down a tree: fetch them together, and with the next such pass.
            want = self._session.wants[self.kind] = Want(k, log_sum, last)
            with contextlib.suppress(DecodeError):  # another row may be to blame: then ask for exactly these
                self.keep(want, self._fetch(k, chosen if last else None, log_sum))
            if (ready := self._ready(k, chosen, log_sum)) is not None:
                return ready
        return self._unpack(self._fetch(k, chosen, log_sum), k, len(chosen))

    def logits(self, row: int) -> Floats:
        self._check([int(row)])
        operation = self._session.operation("rows", want="logits", row=int(row))
        return floats(self._session.send([operation])[0]["logits"]).copy()

    def hidden(self, row: int) -> Floats:
        state: Floats = self.hiddens([row])[0]
        return state

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        size = self._session.spec.features
        if not size:
            raise DecodeError("this bundle's graph has no hidden output", "export it with a draft head")
        chosen = list(range(self.count)) if rows is None else [int(row) for row in rows]
        self._check(chosen)
        states = np.empty((len(chosen), size), np.float32)
        most = max(1, BULK_LIMIT // (4 * size))
        for start in range(0, len(chosen), most):
            part = chosen[start : start + most]
            operation = self._session.operation("rows", want="hidden", rows=part)
            answer = floats(self._session.send([operation])[0]["hidden"])
            states[start : start + most] = answer.reshape(len(part), size)
        return states

    def _fetch(self, k: int, rows: Sequence[int] | None, log_sum: bool) -> dict[str, Any]:
        return self._session.send([self._session.topk_operation(k, rows, log_sum)])[0]

    def _check(self, rows: Sequence[int]) -> None:
        if self._session.number != self._number or self._session.staged == 0:
            raise DecodeError("these rows are gone: the session has run another pass since")
        if any(not 0 <= row < self.count for row in rows):
            raise DecodeError(f"row {max(rows)} of a pass of {self.count} rows")

    def keep(self, want: Want, result: dict[str, Any]) -> None:
        rows = [self.count - 1] if want.last else range(self.count)
        self._sent = self._unpack(result, want.k, len(rows))
        self._sent_rows = {row: i for i, row in enumerate(rows)}

    def _ready(self, k: int, rows: Sequence[int], log_sum: bool) -> TopK | None:
        """From what came with the pass: the best k of more are its first."""
        sent = self._sent
        if sent is None or sent.ids.shape[1] < k or any(row not in self._sent_rows for row in rows):
            return None
        if log_sum and np.isnan(sent.log_sum).any():
            return None
        at = [self._sent_rows[row] for row in rows]
        sums = sent.log_sum[at] if log_sum else np.full(len(at), np.nan)
        return TopK(sent.ids[at, :k], sent.logits[at, :k], sums)

    def unused(self) -> bool:
        return self._sent is not None and not self._asked

    @staticmethod
    def _unpack(result: dict[str, Any], k: int, count: int) -> TopK:
        try:
            ids = np.frombuffer(result["ids"], "<i4").reshape(count, k)
            logits = floats(result["logits"]).reshape(count, k)
            sums = np.frombuffer(result["log_sum"], "<f8") if "log_sum" in result else np.full(count, np.nan)
        except (KeyError, TypeError, ValueError) as error:
            raise RunnerLost(f"the runner's answer cannot be read: {error}") from error
        return TopK(ids, logits, sums)


def convert(value: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RunnerLost(f"the runner's answer cannot be read: {error}") from error


def floats(data: bytes) -> Floats:
    return np.frombuffer(data, "<f4")
