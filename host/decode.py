"""The decode loop: draft a tree, verify it in one target pass, graft the accepted branch, let the draft
catch up.

It drives any session and any drafter alike; plain decoding is a round whose tree has one node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hexgraft.host.drafters.base import Drafter, Limits, NoDraft
from hexgraft.host.logits import NotFinite
from hexgraft.host.sampling import History, Sampling, row_distribution
from hexgraft.host.session import Rows, Session, causal, tree_visibility
from hexgraft.host.stats import Stats
from hexgraft.host.tree import ROOT, TokenTree, single
from hexgraft.host.verify import Match, Verifier
from hexgraft.models.errors import DecodeError, UsageError


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """`tree_size` nodes a round, the root counted; `tree_depth` levels below it, None for as deep as it goes.

    `stops` are token ids that end the text; they are emitted as its last token. `margins` records how far the
    best two logits lie apart at every judged node, `logprobs` the log probabilities of the emitted tokens and
    of that many best ones beside each, None for none; both from raw logits.
    """

    max_tokens: int = 256
    tree_size: int = 16
    tree_depth: int | None = None
    stops: frozenset[int] = frozenset()
    margins: bool = False
    logprobs: int | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UsageError(f"--max-tokens {self.max_tokens} is not positive")
        if self.tree_size < 1:
            raise UsageError(f"--tree-size {self.tree_size} is not positive")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"--logprobs {self.logprobs} is negative")


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of an emitted token at temperature 1, and the best tokens in its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One round: its tree, the accepted nodes from the root on, the emitted tokens, and why the run ended
    if it did.

    `context` is the number of committed tokens before the round. `finish` is "stop", "stop-string", "length"
    (the context is full), "max-tokens" or None. `degraded` tells that logits were not finite and the walk ended
    before them. `margins` and `logprobs` have one entry a token where they were asked for. `width` is that of
    the target pass; `seconds` are this round's share of the phases of `Stats`.
    """

    tree: TokenTree
    accepted: tuple[int, ...]
    tokens: tuple[int, ...]
    context: int
    finish: str | None
    degraded: bool
    margins: tuple[float, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    width: int = 1
    seconds: dict[str, float] = field(default_factory=dict)


class Decoder:
    """Decodes one text after another on a target session. `begin`, then `step` until a round has a finish.

    `ends` is told every emitted token in order and answers whether the text ends with it: stop strings hook in
    here, so that text, tokens, cache and figures end at the same place.
    """

    def __init__(
        self,
        session: Session,
        drafter: Drafter | None = None,
        options: DecodeOptions | None = None,
        verifier: Verifier | None = None,
        ends: Callable[[int], bool] | None = None,
    ) -> None:
        self.session = session
        self.drafter: Drafter = drafter or NoDraft()
        self.options = options or DecodeOptions()
        self.verifier = verifier or Match(self.options.sampling.seed)
        self.verifier.check(self.drafter)
        widest = session.spec.max_width
        if self.options.tree_size > widest:
            raise UsageError(
                f"--tree-size {self.options.tree_size} is wider than the widest graph, {widest}",
                f"use --tree-size {widest} or less, or export with a wider --widths",
            )
        self.tokens: list[int] = []
        self.committed = 0
        self.stats = Stats()
        self._history = History()

    def begin(self, prompt: Sequence[int], progress: Callable[[int], None] | None = None) -> None:
        """Prefill all of the prompt but its last token, which is the first root."""
        capacity = self.session.spec.capacity
        if not prompt:
            raise DecodeError("the prompt is empty", "give at least one token of text")
        if len(prompt) > capacity:
            raise DecodeError(
                f"the prompt has {len(prompt)} tokens, the context holds {capacity}",
                "shorten the prompt, or export with a larger --context",
            )
        self.tokens = list(prompt)
        self.committed = 0
        self.stats = Stats(prompt_tokens=len(prompt))
        self._history = History(prompt)
        start = time.perf_counter()
        self.session.reset()
        end, width = len(prompt) - 1, self.session.spec.max_width
        while self.committed < end:
            chunk = prompt[self.committed : min(end, self.committed + width)]
            places = range(self.committed, self.committed + len(chunk))
            self.session.forward(chunk, places, causal(self.committed, len(chunk)))
            self.session.store(range(len(chunk)), places)
            self.committed += len(chunk)
            if progress:
                progress(len(chunk))
        self.drafter.begin(self.tokens)
        self.stats.spend("prefill", time.perf_counter() - start)

    def step(self) -> Round:
        """One round. The text grows by at least one token, or DecodeError is raised."""
        context, clock = self.committed, _Clock(self.stats)
        passes, rows_before = self.drafter.passes, self.drafter.rows
        tree, degraded = self._draft()
        clock.lap("draft")
        try:
            walk = self._verify(tree, clock)
        except NotFinite:
            if len(tree) == 1:
                raise
            tree, degraded = single(self.tokens[-1]), True
            walk = self._verify(tree, clock)
        walk.degraded |= degraded
        self.session.store(walk.accepted, range(context, context + len(walk.accepted)))
        self.committed += len(walk.accepted)
        clock.lap("graft")
        self.drafter.accept(tree, walk.accepted)
        clock.lap("draft")
        self.stats.count(tree, walk.judged)
        self.stats.tokens += len(walk.tokens)
        self.stats.degraded += walk.degraded
        self.stats.draft_passes += self.drafter.passes - passes
        self.stats.draft_rows += self.drafter.rows - rows_before
        return Round(tree, tuple(walk.accepted), tuple(walk.tokens), context, walk.finish, walk.degraded)

    def rounds(self) -> Iterator[Round]:
        """Rounds until one has a finish."""
        while True:
            current = self.step()
            yield current
            if current.finish is not None:
                return

    def _limits(self) -> Limits:
        """A tree may be as large as asked for, and as deep as context and token budget leave useful."""
        room = self.session.spec.capacity - self.committed - 1
        budget = self.options.max_tokens - self.stats.tokens - 1
        depth = min(room, budget, self.options.tree_depth or self.options.tree_size)
        return Limits(self.options.tree_size if depth else 1, depth, self.options.stops)

    def _draft(self) -> tuple[TokenTree, bool]:
        """The drafter's tree; the root alone, and True, where the draft's logits are not finite."""
        try:
            return self.drafter.draft(self.tokens, self._limits()), False
        except NotFinite:
            return single(self.tokens[-1]), True

    def _verify(self, tree: TokenTree, clock: _Clock) -> _Walk:
        """One target pass over the tree, then the walk. Positions come from depth, visibility from
        ancestry."""
        positions = (self.committed + tree.depths).tolist()
        visible = tree_visibility(self.committed, tree.ancestors())
        rows = self.session.forward(tree.tokens.tolist(), positions, visible)
        self.stats.spend("target", rows.seconds)
        clock.lap("target host", less=rows.seconds)
        walk = self._walk(tree, rows)
        clock.lap("verify")
        return walk

    def _walk(self, tree: TokenTree, rows: Rows) -> _Walk:
        """From the root along accepted children until the target disagrees, the tree ends, or the text
        does."""
        walk = _Walk([ROOT], [], [])
        node = ROOT
        while True:
            try:
                target = row_distribution(rows, node, self.options.sampling, self._history)
            except NotFinite:
                if node == ROOT:
                    raise
                # The node's own token was emitted by its parent; only what follows it is unknown.
                walk.accepted.pop()
                walk.degraded = True
                return walk
            position = self.committed + int(tree.depths[node]) + 1
            verdict = self.verifier.judge(tree, node, target, position)
            walk.judged.append((node, verdict.child))
            walk.tokens.append(verdict.token)
            self.tokens.append(verdict.token)
            self._history.append(verdict.token)
            walk.finish = self._finish(verdict.token, len(walk.tokens))
            if walk.finish is not None or verdict.child is None:
                return walk
            node = verdict.child
            walk.accepted.append(node)

    def _finish(self, token: int, emitted: int) -> str | None:
        if token in self.options.stops:
            return "stop"
        if self.stats.tokens + emitted >= self.options.max_tokens:
            return "max-tokens"
        # The token after the last slot can be emitted but not continued.
        return "length" if len(self.tokens) > self.session.spec.capacity else None


@dataclass(slots=True)
class _Walk:
    accepted: list[int]
    tokens: list[int]
    judged: list[tuple[int, int | None]]
    finish: str | None = None
    degraded: bool = False


class _Clock:
    """Laps of one round, booked to phases."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._last = time.perf_counter()

    def lap(self, phase: str, *, less: float = 0.0) -> None:
        now = time.perf_counter()
        self._stats.spend(phase, now - self._last - less)
        self._last = now
