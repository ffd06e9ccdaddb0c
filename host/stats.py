"""What a run measured: rounds, acceptance by depth and by rank, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hexgraft.host.tree import TokenTree


@dataclass(slots=True)
class Tally:
    """How often something was tried and how often it was accepted."""

    tried: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        return self.accepted / self.tried if self.tried else 0.0


@dataclass(slots=True)
class Stats:
    """Counts of one run; pad rows reach none of them. Times are seconds.

    `by_depth[d]`: rounds whose walk stood at depth d with children there, and how often one was accepted.
    `by_rank[r]`: judged nodes with more than r children, and how often child r was the accepted one.
    `seconds`: "prefill", "draft", "target" (inside the graph), "target host" (the session around it),
    "verify", "graft".
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    rounds: int = 0
    tokens: int = 0
    nodes: int = 0
    degraded: int = 0
    draft_passes: int = 0
    draft_rows: int = 0
    by_depth: list[Tally] = field(default_factory=list)
    by_rank: list[Tally] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens a target pass, the bonus token counted."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def decode_seconds(self) -> float:
        return sum(value for phase, value in self.seconds.items() if phase != "prefill")

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def host_share(self) -> float:
        """Part of the decode time spent outside the target's graph runtime."""
        total = self.decode_seconds
        return 1 - self.seconds.get("target", 0.0) / total if total else 0.0

    def spend(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def count(self, tree: TokenTree, judged: Sequence[tuple[int, int | None]]) -> None:
        """Record a walk: the judged nodes of `tree` and the child accepted at each, None for none."""
        self.rounds += 1
        self.nodes += len(tree)
        for node, child in judged:
            children = tree.children(node)
            if not children:
                continue
            _count(self.by_depth, int(tree.depths[node]), child is not None)
            for rank, sibling in enumerate(children):
                _count(self.by_rank, rank, sibling == child)

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "tokens_per_round": round(self.tokens_per_round, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
            "nodes": self.nodes,
            "degraded": self.degraded,
            "draft_passes": self.draft_passes,
            "draft_rows": self.draft_rows,
            "acceptance_by_depth": [[t.accepted, t.tried] for t in self.by_depth],
            "acceptance_by_rank": [[t.accepted, t.tried] for t in self.by_rank],
            "seconds": {phase: round(value, 6) for phase, value in self.seconds.items()},
        }


def _count(tallies: list[Tally], place: int, accepted: bool) -> None:
    while len(tallies) <= place:
        tallies.append(Tally())
    tallies[place].tried += 1
    tallies[place].accepted += accepted
