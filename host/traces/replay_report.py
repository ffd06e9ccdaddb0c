"""What a replayed trace shows: figures by phase and round, the worst rows, the logits the trace recorded, and
cache damage."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from hexgraft.host.session import Session
from hexgraft.host.traces.cache_check import CacheCheck, Damage
from hexgraft.host.traces.replay import (
    Figures,
    ForcedPass,
    Pair,
    RowFigures,
    Worst,
    common_width,
    measure,
    replay,
    trace_passes,
)
from hexgraft.host.traces.trace import Judged, Trace, finite


@dataclass(slots=True)
class Recorded:
    """The candidates a trace holds against the logits of the replay's other session: no reference needed.

    `agreed` counts rows whose best token is the recorded one; `max_error` is infinite where a logit is not
    finite.
    """

    rows: int = 0
    agreed: int = 0
    max_error: float = 0.0

    def add(self, judged: Judged, pair: Pair) -> None:
        known = [(token, logit) for token, logit in judged.top if logit is not None]
        if not known:
            return
        self.rows += 1
        self.agreed += known[0][0] == int(pair.other.argmax())
        errors = (abs(logit - float(pair.other[token])) for token, logit in known)
        self.max_error = max(self.max_error, *(math.inf if math.isnan(error) else error for error in errors))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"max_error": finite(self.max_error)}


@dataclass(slots=True)
class Report:
    """`nodes` holds the figures of every row of a tree by round and node; prefill rows are in round 0."""

    total: Figures = field(default_factory=Figures)
    phases: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))
    rounds: dict[int, Figures] = field(default_factory=lambda: defaultdict(Figures))
    nodes: dict[tuple[int, int], RowFigures] = field(default_factory=dict)
    worst: list[tuple[ForcedPass, int, RowFigures]] = field(default_factory=list)
    recorded: Recorded = field(default_factory=Recorded)
    damage: Damage | None = None
    cache_checked: bool = False

    @property
    def sound(self) -> bool:
        """Neither damage in a cache nor a logit that is not finite."""
        return self.damage is None and not self.total.not_finite

    def as_dict(self) -> dict[str, Any]:
        """For --json; what is infinite or not known is null."""
        return {
            "total": self.total.as_dict(),
            "phases": {phase: figures.as_dict() for phase, figures in self.phases.items()},
            "rounds": [
                {
                    "round": number,
                    **figures.as_dict(),
                    "nodes": [
                        _row(node, row) for (round_, node), row in self.nodes.items() if round_ == number
                    ],
                }
                for number, figures in self.rounds.items()
            ],
            "worst": [
                {
                    "phase": forced.phase,
                    "round": forced.round,
                    "position": forced.positions[node],
                    **_row(node, row),
                }
                for forced, node, row in self.worst
            ],
            "recorded": self.recorded.as_dict(),
            "cache_checked": self.cache_checked,
            "damage": self.damage.as_dict() if self.damage else None,
        }


def _row(node: int, row: RowFigures) -> dict[str, Any]:
    return {
        "node": node,
        "kl": row.kl if row.finite else None,
        "max_error": row.error if row.finite else None,
        "best": list(row.best),
    }


def replay_trace(
    trace: Trace, reference: Session, other: Session, *, worst: int = 5, check: CacheCheck | None = None
) -> Report:
    """Replay a whole trace. `check` is told every pass; its finding becomes `damage`."""
    report, worst_rows = Report(cache_checked=check is not None), Worst(worst)
    judged = {
        (current.number, node): one
        for current in trace.rounds
        for node, one in zip(current.accepted, current.judged, strict=False)
    }
    passes = trace_passes(trace, common_width(reference, other))
    for pair in replay(passes, reference, other, check):
        row, forced = measure(pair), pair.forced
        for figures in (report.total, report.phases[forced.phase], report.rounds[forced.round]):
            figures.add(row)
        if forced.round:
            report.nodes[forced.round, pair.row] = row
        worst_rows.add(pair, row)
        if (forced.round, pair.row) in judged:
            report.recorded.add(judged[forced.round, pair.row], pair)
    report.worst = worst_rows.rows()
    report.damage = check.damage if check else None
    return report
