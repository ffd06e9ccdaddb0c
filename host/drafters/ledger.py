"""The books of a run that follows acceptance: what a round may cost, what a token is worth, when to rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

BOUND = 0.05
"""How much slower than plain decoding a text may get, as far as the table is right."""
HORIZON = 8
"""Tokens a text is taken to have at least: until then it may lose what so many would allow. More would let
trees begin sooner where passes are dear, at the price of short answers."""

_PRIOR = 12.0
"""Tokens that the speed foreseen counts for, against those measured."""
_MEMORY = 0.97
"""What a round's speed counts one round later."""
_PATIENCE = (6, 2)
"""Rounds whose gains must add up to something: at first, and when trying again."""
_PAUSES = (8, 16, 32, 64)
"""Plain rounds after a failure, after the second in a row, and so on."""


class RoundCosts(Protocol):
    """Seconds, by the rows of a pass and the cache slots in use. `drafting` is that of a drafted round beside
    the draft's passes, `row` that of every accepted node beside the pass."""

    @property
    def drafting(self) -> float: ...

    @property
    def row(self) -> float: ...

    def plain(self, fill: int) -> float: ...

    def verify(self, rows: int, fill: int) -> float: ...

    def pass_of_draft(self, rows: int, fill: int) -> float: ...

    def catch_up(self, rows: int, fill: int) -> float: ...


@dataclass(slots=True)
class Purse:
    """What a round may still spend on draft passes, and what one more accepted token is worth: a `Pace`."""

    costs: RoundCosts
    fill: int
    token: float
    left: float

    def afford(self, gains: Sequence[float]) -> int:
        """As many as bring most beyond what their pass costs; rows that a padded pass has anyway are free."""
        best, most, price, gain = 0, 0.0, 0.0, 0.0
        for rows, more in enumerate(gains, start=1):
            gain += more
            cost = self.costs.pass_of_draft(rows, self.fill)
            if cost <= self.left and gain * self.token - cost >= most:
                best, most, price = rows, gain * self.token - cost, cost
        self.left -= price
        return best


@dataclass(slots=True)
class Ledger:
    """Seconds of a text by the table: what its rounds cost, and what the same tokens cost plainly."""

    paid: float = 0.0
    plain: float = 0.0
    recent_tokens: float = 0.0
    recent_seconds: float = 0.0

    def slack(self, plain: float) -> float:
        """What the next round may lose against a plain one of `plain` seconds."""
        return BOUND * max(self.plain + plain, HORIZON * plain) + self.plain - self.paid

    def worth(self, plain: float, foreseen: float) -> float:
        """Seconds a token is worth: what it costs at the speed this text has. A pass that brings tokens
        dearer than that lowers the speed (Dinkelbach's rule for ratios)."""
        seconds = _PRIOR * plain / foreseen + self.recent_seconds
        return min(plain, seconds / (_PRIOR + self.recent_tokens))

    def book(self, tokens: int, paid: float, plain: float) -> None:
        self.paid += paid
        self.plain += plain
        self.recent_tokens = _MEMORY * self.recent_tokens + tokens
        self.recent_seconds = _MEMORY * self.recent_seconds + paid


@dataclass(slots=True)
class Trust:
    """Whether asking the draft model pays at all: it rests after rounds that together lost."""

    outcomes: list[float] = field(default_factory=list)
    failures: int = 0
    pause: int = 0

    def resting(self) -> bool:
        if self.pause == 0:
            return False
        self.pause -= 1
        return True

    def learn(self, outcome: float) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) < _PATIENCE[min(self.failures, 1)]:
            return
        if sum(self.outcomes) < 0:
            self.pause = _PAUSES[min(self.failures, len(_PAUSES) - 1)]
            self.failures += 1
        else:
            self.failures = 0
        self.outcomes.clear()
