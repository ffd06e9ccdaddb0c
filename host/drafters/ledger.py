"""The books of a run that follows acceptance: what a round may cost, what a token is worth, when to rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import msgspec

BOUND = 0.05
"""How much slower than plain decoding a text may get, as far as the table is right."""
HORIZON = 8
"""Tokens a text is taken to have at least: until then it may lose what so many would allow. More would let
trees begin sooner where passes are dear, at the price of short answers."""

LONG = 64
"""Rounds from one look at whether a tree may be drafted to the next, at most."""

_PRIOR = 12.0
"""Tokens that the speed foreseen counts for, against those measured."""
_MEMORY = 0.97
"""What a round's speed counts one round later."""
_PATIENCE = (6, 2)
"""Rounds whose gains must add up to something: at first, and when trying again."""
_PAUSES = (8, 16, 32, 64)
"""Plain rounds after a failure, after the second in a row, and so on."""


Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
"""As files may hold them: finite, and no more than an hour."""


class Toll(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Seconds the host takes beside all passes, beyond a plain round's: `passing` in a round that goes by
    without a look, `looking` where a look showed that no tree may be drafted; `asking` where one is asked
    for, `tree` beyond that where there is one, `node` for each node of it but the root, `token` for each
    that is emitted after the first."""

    passing: Seconds = 0.0
    looking: Seconds = 0.0
    asking: Seconds = 0.0
    tree: Seconds = 0.0
    node: Seconds = 0.0
    token: Seconds = 0.0

    def drafted(self, nodes: int) -> float:
        """What a tree of so many nodes, the root counted, takes to draft."""
        return self.asking + (self.tree + self.node * (nodes - 1) if nodes > 1 else 0.0)


FREE = Toll()


class RoundCosts(Protocol):
    """Seconds, by the rows of a pass and the cache slots in use. `row` is that of every accepted node beside
    the pass, `toll` what the host takes."""

    @property
    def toll(self) -> Toll: ...

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

    def wait(self, plain: float, least: float, toll: Toll) -> int:
        """After how many plain rounds of `plain` seconds, the first with a look, `least` can be lost; LONG at
        most."""
        missing = (
            least + toll.looking - toll.passing - BOUND * (self.plain + plain) - (self.plain - self.paid)
        )
        gain = BOUND * plain - toll.passing
        return max(1, min(LONG, math.ceil(missing / gain))) if gain > 0 else LONG

    def worth(self, plain: float, foreseen: float) -> float:
        """Seconds a token is worth: what it costs at the speed this text has. A pass that brings tokens
        dearer than that lowers the speed (Dinkelbach's rule for ratios)."""
        seconds = _PRIOR * plain / foreseen + self.recent_seconds
        return min(plain, seconds / (_PRIOR + self.recent_tokens))

    def rest(self, rounds: int, paid: float, plain: float) -> None:
        """Book so many plain rounds, each of which took `paid`."""
        left = _MEMORY**rounds
        self.paid += rounds * paid
        self.plain += rounds * plain
        self.recent_tokens = left * self.recent_tokens + (1 - left) / (1 - _MEMORY)
        self.recent_seconds = left * self.recent_seconds + (1 - left) / (1 - _MEMORY) * paid

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

    def rest(self) -> int:
        """For how many rounds to rest from here on; told once."""
        pause, self.pause = self.pause, 0
        return pause

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
