"""Forces tokens through two sessions in the very same passes and compares their logits row by row.

Neither session chooses anything, so they are comparable however far apart their arithmetic is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hexgraft.host.session import Floats, Rows, Session, Visibility, causal, tree_visibility
from hexgraft.host.traces.trace import Trace
from hexgraft.host.tree import TokenTree, single
from hexgraft.models.errors import UsageError


@dataclass(frozen=True, slots=True)
class ForcedPass:
    """One pass in which everything is decided beforehand.

    `phase` is "prefill", "decode" (a tree of one node) or "tree"; `round` 0 for prefill, otherwise counted
    from 1. `tokens` and `positions` [T]; the `accepted` rows go, in order, to the slots from `context` on.
    `follows` [T] is the token that came after each row, None where it is not known.
    """

    phase: str
    round: int
    context: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    visible: Visibility
    accepted: tuple[int, ...]
    follows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """The logits [vocab] of one row in both sessions. In a tree the row is the node."""

    forced: ForcedPass
    row: int
    reference: Floats
    other: Floats

    @property
    def follow(self) -> int | None:
        return self.forced.follows[self.row]


def prefill_passes(tokens: Sequence[int], end: int, width: int) -> Iterator[ForcedPass]:
    """The first `end` of `tokens`, in chunks of `width`, as `Decoder.begin` feeds a prompt."""
    for start in range(0, end, width):
        chunk = tokens[start : min(end, start + width)]
        places = tuple(range(start, start + len(chunk)))
        after = tokens[start + 1 : start + 1 + len(chunk)]
        follows = (*after, *[None] * (len(chunk) - len(after)))
        yield ForcedPass(
            "prefill",
            0,
            start,
            tuple(chunk),
            places,
            causal(start, len(chunk)),
            tuple(range(len(chunk))),
            follows,
        )


def tree_pass(
    tree: TokenTree, context: int, accepted: Sequence[int], emitted: Sequence[int], number: int
) -> ForcedPass:
    """A round: `accepted` nodes from the root on, each followed by the emitted token of its place."""
    after = dict(zip(accepted, emitted, strict=False))
    return ForcedPass(
        "decode" if len(tree) == 1 else "tree",
        number,
        context,
        tuple(tree.tokens.tolist()),
        tuple((context + tree.depths).tolist()),
        tree_visibility(context, tree.ancestors()),
        tuple(accepted),
        tuple(after.get(node) for node in range(len(tree))),
    )


def decode_passes(tokens: Sequence[int], start: int, first: int = 1) -> Iterator[ForcedPass]:
    """Plain decoding: one pass a token from slot `start` on, the last of `tokens` only as what follows."""
    for place in range(start, len(tokens) - 1):
        yield tree_pass(single(tokens[place]), place, [0], [tokens[place + 1]], first + place - start)


def trace_passes(trace: Trace, width: int) -> Iterator[ForcedPass]:
    """Prefill in chunks of `width`, then the rounds of a trace with its trees and accepted paths."""
    widest = max((len(current.tokens) for current in trace.rounds), default=1)
    if widest > width:
        raise UsageError(
            f"the trace has trees of {widest} nodes, the sessions run at most {width}",
            "replay it on sessions with wider --widths, or record it with a smaller --tree-size",
        )
    prompt = trace.header.prompt
    yield from prefill_passes(prompt, len(prompt) - 1, width)
    for current in trace.rounds:
        yield tree_pass(current.tree(), current.context, current.accepted, current.emitted, current.number)


def common_width(*sessions: Session) -> int:
    """The widest pass of which all sessions give every row's logits."""
    return min(session.spec.tree_width for session in sessions)


def replay(
    passes: Iterable[ForcedPass],
    reference: Session,
    other: Session,
    after: Callable[[ForcedPass], None] | None = None,
    *,
    before: Callable[[ForcedPass], None] | None = None,
    watch: Callable[[ForcedPass, Rows, Rows], None] | None = None,
) -> Iterator[Pair]:
    """Run every pass on both sessions and give their rows. `before` is told of each pass first, `watch` given
    the rows of both, `after` told once they are stored.

    The sessions must be two different ones; both start from an empty cache.
    """
    if reference is other:
        raise UsageError("a session cannot be compared with itself", "open it a second time")
    reference.reset()
    other.reset()
    for forced in passes:
        if before is not None:
            before(forced)
        ours = reference.forward(forced.tokens, forced.positions, forced.visible)
        theirs = other.forward(forced.tokens, forced.positions, forced.visible)
        if watch is not None:
            watch(forced, ours, theirs)
        for row in range(len(forced.tokens)):
            yield Pair(forced, row, ours.logits(row), theirs.logits(row))
        slots = range(forced.context, forced.context + len(forced.accepted))
        for session in (reference, other):
            session.store(forced.accepted, slots)
        if after is not None:
            after(forced)


@dataclass(frozen=True, slots=True)
class RowFigures:
    """One row. `kl` is KL(reference || other) in nats, `error` the largest difference of two logits, both
    infinite where a logit is not finite; `best` are the best tokens of reference and other; `signal` and
    `noise` sums of squares; `losses` the negative log likelihoods of the token that followed, if known."""

    kl: float
    error: float
    best: tuple[int, int]
    signal: float
    noise: float
    losses: tuple[float, float] | None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.error)


def measure(pair: Pair) -> RowFigures:
    """Compare the two rows of a pair, in float64."""
    a, b = pair.reference.astype(np.float64), pair.other.astype(np.float64)
    best = (int(a.argmax()), int(b.argmax()))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return RowFigures(math.inf, math.inf, best, 0.0, 0.0, None)
    difference = a - b
    p, q = _log_softmax(a), _log_softmax(b)
    follow = pair.follow
    return RowFigures(
        kl=max(0.0, float(np.exp(p) @ (p - q))),
        error=float(np.abs(difference).max()),
        best=best,
        signal=float(a @ a),
        noise=float(difference @ difference),
        losses=None if follow is None else (-float(p[follow]), -float(q[follow])),
    )


@dataclass(slots=True)
class Figures:
    """Agreement of two sessions over some rows. Rows that are not finite count as disagreement and reach no
    other figure but `not_finite`."""

    rows: int = 0
    not_finite: int = 0
    agreed: int = 0
    forced: int = 0
    max_error: float = 0.0
    max_kl: float = 0.0
    _kl: float = 0.0
    _signal: float = 0.0
    _noise: float = 0.0
    _losses: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, row: RowFigures) -> None:
        self.rows += 1
        if not row.finite:
            self.not_finite += 1
            return
        self.agreed += row.best[0] == row.best[1]
        self.max_error = max(self.max_error, row.error)
        self.max_kl = max(self.max_kl, row.kl)
        self._kl += row.kl
        self._signal += row.signal
        self._noise += row.noise
        if row.losses is not None:
            self.forced += 1
            self._losses = [total + loss for total, loss in zip(self._losses, row.losses, strict=True)]

    @property
    def kl(self) -> float:
        """Mean KL(reference || other) in nats."""
        finite = self.rows - self.not_finite
        return self._kl / finite if finite else math.nan

    @property
    def agreement(self) -> float:
        """Share of rows whose best token is the same."""
        return self.agreed / self.rows if self.rows else math.nan

    @property
    def sqnr_db(self) -> float:
        """Signal to noise of the logits in dB; infinite without a difference."""
        if not self._signal:
            return math.nan
        return 10 * math.log10(self._signal / self._noise) if self._noise else math.inf

    @property
    def perplexity(self) -> tuple[float, float]:
        """Of the forced tokens, under reference and other."""
        if not self.forced:
            return math.nan, math.nan
        a, b = (math.exp(min(total / self.forced, 700.0)) for total in self._losses)
        return a, b

    def as_dict(self) -> dict[str, Any]:
        """For --json; what is infinite or not known is null."""
        perplexity = self.perplexity
        figures: dict[str, float] = {
            "rows": self.rows,
            "not_finite": self.not_finite,
            "kl": self.kl,
            "max_kl": self.max_kl,
            "max_error": self.max_error,
            "agreement": self.agreement,
            "sqnr_db": self.sqnr_db,
            "perplexity_reference": perplexity[0],
            "perplexity_other": perplexity[1],
        }
        return {name: value if math.isfinite(value) else None for name, value in figures.items()}


class Worst:
    """The `count` rows with the largest KL, worst first; rows that are not finite before all others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[float, int, ForcedPass, int, RowFigures]] = []
        self._seen = 0

    def add(self, pair: Pair, row: RowFigures) -> None:
        self._seen += 1
        entry = (row.kl, -self._seen, pair.forced, pair.row, row)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, entry)
        elif self._count:
            heapq.heappushpop(self._heap, entry)

    def rows(self) -> list[tuple[ForcedPass, int, RowFigures]]:
        return [entry[2:] for entry in sorted(self._heap, key=lambda e: (-e[0], -e[1]))]


def _log_softmax(row: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    shifted = row - row.max()
    result: np.ndarray[Any, np.dtype[np.float64]] = shifted - np.log(np.exp(shifted).sum())
    return result
