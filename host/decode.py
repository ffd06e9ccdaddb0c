"""The decode loop: draft a tree, verify it in one target pass, graft the accepted branch, let the draft
catch up.

It drives any session and any drafter alike; plain decoding is a round whose tree has one node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from hexgraft.host.drafters.base import Drafter, Limits, NoDraft
from hexgraft.host.drafters.features import check_features
from hexgraft.host.logits import NotFinite
from hexgraft.host.sampling import History, Sampling
from hexgraft.host.session import Rows, Session, prefill, tree_visibility
from hexgraft.host.stats import Stats
from hexgraft.host.tree import TokenTree, single
from hexgraft.host.verify import Match, Verifier
from hexgraft.host.walk import TokenLogprob, Walk, Walker
from hexgraft.models.errors import CONNECTION_LOST, DecodeError, HexgraftError, UsageError


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
            raise UsageError(f"--max-tokens {self.max_tokens} is not positive", "example: --max-tokens 256")
        if self.tree_size < 1:
            raise UsageError(f"--tree-size {self.tree_size} is not positive", "example: --tree-size 16")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"--logprobs {self.logprobs} is negative", "example: --logprobs 5")


@dataclass(frozen=True, slots=True)
class Round:
    """One round: its tree, the accepted nodes from the root on, the emitted tokens, and why the run ended
    if it did.

    `context` is the number of committed tokens before the round. `finish` is "stop", "stop-string", "length"
    (the context is full), "max-tokens" or None. `degraded` tells that logits were not finite and the walk
    ended before them. `margins` and `logprobs` have one entry a token where they were asked for. `width` is
    that of the target pass; `seconds` are this round's share of the phases of `Stats`. `lost` is the error of
    a link that broke in this round, which then holds what was emitted before.
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
    lost: HexgraftError | None = None


class Decoder:
    """Decodes one text after another on a target session. `begin`, then `step` until a round has a finish.

    `ends` is told every emitted token in order and answers whether the text ends with it: stop strings hook
    in here, so that text, tokens, cache and figures end at the same place.
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
        if self.drafter.reader is not None:
            check_features(self.drafter.reader, session.spec.features)
        widest = session.spec.tree_width
        if self.options.tree_size > widest:
            every = widest == session.spec.max_width
            raise UsageError(
                f"--tree-size {self.options.tree_size} is wider than the widest graph"
                f"{'' if every else ' with the logits of every row'}, {widest}",
                f"use --tree-size {widest} or less{', or export with a wider --widths' if every else ''}",
            )
        sampling = self.options.sampling
        self._walker = Walker(
            self.verifier, sampling, self.options.margins, self.options.logprobs, self._emit
        )
        self._ends = ends
        self.tokens: list[int] = []
        self.committed = 0
        self.finish: str | None = None
        """Why the text ended, as soon as its last token is emitted."""
        self.stats = Stats()
        self._history = History()

    def check(self, prompt: Sequence[int]) -> None:
        """Raise DecodeError for a prompt that `begin` cannot take."""
        capacity = self.session.spec.capacity
        if not prompt:
            raise DecodeError("the prompt is empty", "give at least one token of text")
        if len(prompt) > capacity:
            raise DecodeError(
                f"the prompt has {len(prompt)} tokens, the context holds {capacity}",
                "shorten the prompt, or export with a larger --context",
            )

    def begin(
        self, prompt: Sequence[int], progress: Callable[[int], None] | None = None, *, reuse: bool = False
    ) -> None:
        """Prefill all of the prompt but its last token, which is the first root.

        `reuse` keeps what the cache already holds of the prompt's beginning: the next turn of a conversation
        pays for its new tokens only. `progress` is told the tokens prefilled, as they are.
        """
        self.check(prompt)
        keep = common_length(prompt, self.tokens[: self.committed]) if reuse else 0
        keep, reader = min(keep, len(prompt) - 1), self.drafter.reader
        if reader is not None:
            keep = reader.align(keep)
        self.tokens = list(prompt)
        self.committed = keep
        self.stats = Stats(prompt_tokens=len(prompt), reused_tokens=self.committed)
        self._history = History(prompt)
        self.finish = None
        start = time.perf_counter()
        if not self.committed:
            self.session.reset()
        # Before the target: if `progress` raises, both caches still hold beginnings of the same text.
        self.drafter.begin(self.tokens, self.committed)
        watch = None if reader is None else self._show
        for filled in prefill(self.session, prompt, self.committed, len(prompt) - 1, watch):
            fresh, self.committed = filled - self.committed, filled
            if progress:
                progress(fresh)
        self.stats.spend("prefill", time.perf_counter() - start)

    def resume(
        self,
        session: Session,
        drafter: Drafter,
        progress: Callable[[int], None] | None = None,
        *,
        held: int = 0,
    ) -> None:
        """Go on with the same text on another session, after the first one was lost in a round.

        What of the text is not among the first `held` slots of the new session is prefilled again. Tokens the
        lost round had emitted stay in the text; draws are keyed by position, so that the next round goes on
        as that one would have. If this link is lost too, so that `begin` raises, it may be called again.
        """
        stats, history = self.stats, self._history
        self.session, self.drafter, self.committed = session, drafter, held
        try:
            self.begin(self.tokens, progress, reuse=True)
            stats.spend("prefill", self.stats.seconds["prefill"])
        finally:  # budget, penalties and figures are those of the whole text, not of what `begin` began
            self.stats, self._history = stats, history

    def adopt(self, tokens: Sequence[int]) -> None:
        """Before the first text: these tokens are in the session's cache already; `begin` may reuse them."""
        self.tokens, self.committed = list(tokens), len(tokens)

    def step(self) -> Round:
        """One round. The text grows by at least one token, or DecodeError is raised."""
        context, clock = self.committed, _Clock(self.stats)
        passes, rows_before = self.drafter.passes, self.drafter.rows
        tree, degraded = self._draft()
        clock.lap("draft")
        try:
            walk, rows = self._verify(tree, clock)
        except NotFinite:
            if len(tree) == 1:
                raise
            tree, degraded = single(self.tokens[-1]), True
            walk, rows = self._verify(tree, clock)
        walk.degraded |= degraded
        if walk.lost is None:
            walk.lost = self._graft(tree, rows, walk, clock)
        self.stats.count(tree, walk.judged)
        self.stats.degraded += walk.degraded
        self.stats.draft_passes += self.drafter.passes - passes
        self.stats.draft_rows += self.drafter.rows - rows_before
        return Round(
            tree=tree,
            accepted=tuple(walk.accepted),
            tokens=tuple(walk.tokens),
            context=context,
            finish=walk.finish,
            degraded=walk.degraded,
            margins=tuple(walk.margins),
            logprobs=tuple(walk.logprobs),
            width=rows.width,
            seconds=clock.phases,
            lost=walk.lost,
        )

    def _graft(self, tree: TokenTree, rows: Rows, walk: Walk, clock: _Clock) -> HexgraftError | None:
        """Commit the accepted nodes to both caches; the error of a link that is gone."""
        context = self.committed
        try:
            self.session.store(walk.accepted, range(context, context + len(walk.accepted)))
            self.committed += len(walk.accepted)
            if self.drafter.reader is not None:
                self._show(context, rows, walk.accepted)
            clock.lap("graft")
            self.drafter.accept(tree, walk.accepted)
            clock.lap("draft")
        except HexgraftError as error:
            if error.exit_code != CONNECTION_LOST:
                raise
            return error
        return None

    def rounds(self) -> Iterator[Round]:
        """Rounds until one has a finish. A round in which the link broke is given before its error is raised,
        if it emitted anything."""
        while True:
            current = self.step()
            yield current
            if current.finish is not None:
                return
            if current.lost is not None:
                raise current.lost

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

    def _show(self, start: int, rows: Rows, chosen: Sequence[int] | None = None) -> None:
        """Hand the features of a target pass to the drafter that reads them."""
        if self.drafter.reader is not None:
            self.drafter.reader.read(self.tokens, start, rows.hiddens(chosen))

    def _verify(self, tree: TokenTree, clock: _Clock) -> tuple[Walk, Rows]:
        """One target pass over the tree, then the walk. Positions come from depth, visibility from
        ancestry."""
        positions = (self.committed + tree.depths).tolist()
        visible = tree_visibility(self.committed, tree.ancestors())
        rows = self.session.forward(tree.tokens.tolist(), positions, visible)
        clock.lap("target host", inside=("target", rows.seconds))
        try:
            walk = self._walker.walk(tree, rows, self._history, self.committed)
        except NotFinite as error:
            raise NotFinite(self.session.spec.provider) from error
        clock.lap("verify")
        return walk, rows

    def _emit(self, token: int) -> str | None:
        """Take an emitted token into the text; why the text ends with it, if it does."""
        self.finish = self._take(token)
        return self.finish

    def _take(self, token: int) -> str | None:
        self.tokens.append(token)
        self.stats.tokens += 1
        ended = self._ends is not None and self._ends(token)
        if token in self.options.stops:
            return "stop"
        if ended:
            return "stop-string"
        if self.stats.tokens >= self.options.max_tokens:
            return "max-tokens"
        # The token after the last slot can be emitted but not continued.
        return "length" if len(self.tokens) > self.session.spec.capacity else None


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class _Clock:
    """Laps of one round, booked to phases."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._last = time.perf_counter()
        self.phases: dict[str, float] = {}

    def lap(self, phase: str, *, inside: tuple[str, float] | None = None) -> None:
        """Book the time since the last lap to `phase`, less what `inside` books to a phase of its own."""
        now = time.perf_counter()
        spent = now - self._last
        if inside is not None:
            self._book(*inside)
            spent -= inside[1]
        self._book(phase, spent)
        self._last = now

    def _book(self, phase: str, seconds: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
        self._stats.spend(phase, seconds)
