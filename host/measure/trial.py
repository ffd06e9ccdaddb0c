"""A setting tried on transcripts: the rounds a run of it has, without the target's passes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.drafters.wrapped import WrappedDrafter
from hexgraft.host.lab.comparison import Transcript, merge_tallies
from hexgraft.host.lab.scripted_session import ScriptedSession
from hexgraft.host.measure.metered import Clock, Metered
from hexgraft.host.measure.setting import Setting
from hexgraft.host.session import SessionSpec
from hexgraft.host.stats import Stats, Tally
from hexgraft.host.tree import TokenTree

Passes = Counter[tuple[int, int]]
"""How often a pass of so many rows at such a fill of the cache happened."""


@dataclass(slots=True)
class Part:
    """One transcript's share of a trial. `drafting` are seconds of drafting beside the draft's passes."""

    tokens: int
    rounds: int
    target: Passes
    draft: Passes
    drafting: float


@dataclass(slots=True)
class Trial:
    """What a setting does to transcripts, part by part, and acceptance by depth and by rank over all."""

    setting: Setting
    parts: list[Part] = field(default_factory=list)
    by_depth: list[Tally] = field(default_factory=list)
    by_rank: list[Tally] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def rounds(self) -> int:
        return sum(part.rounds for part in self.parts)

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def passes_per_round(self) -> float:
        passes = sum(part.draft.total() for part in self.parts)
        return passes / self.rounds if self.rounds else 0.0

    @property
    def drafting(self) -> float:
        """Seconds a round of drafting beside the draft's passes."""
        return sum(part.drafting for part in self.parts) / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, slots=True)
class Bench:
    """What trials share: the target's sizes, transcripts with the options they were made with, and the
    draft's meter where there is a draft model."""

    spec: SessionSpec
    transcripts: Sequence[Transcript]
    options: DecodeOptions
    draft: Metered | None = None
    clock: Clock = time.perf_counter


def run_trial(bench: Bench, setting: Setting, drafter: Drafter) -> Trial:
    """Try a setting's drafter on every transcript."""
    trial = Trial(setting)
    for transcript in bench.transcripts:
        part, stats = _run(bench, setting, drafter, transcript)
        trial.parts.append(part)
        merge_tallies(trial.by_depth, stats.by_depth)
        merge_tallies(trial.by_rank, stats.by_rank)
    return trial


def _run(bench: Bench, setting: Setting, drafter: Drafter, transcript: Transcript) -> tuple[Part, Stats]:
    text = [*transcript.prompt, *transcript.answer]
    script = ScriptedSession(bench.spec, text, transcript.features)
    target = Metered(script, bench.clock)
    # The script has drawn already: sampling it again would draw among one token.
    options = DecodeOptions(
        max_tokens=bench.options.max_tokens,
        tree_size=setting.tree_size,
        tree_depth=setting.tree_depth,
        stops=bench.options.stops,
    )
    timed = Timed(drafter, bench.draft, bench.clock)
    decoder = Decoder(target, timed, options)
    decoder.begin(transcript.prompt)
    target.clear()
    if bench.draft is not None:
        bench.draft.clear()
    for _ in decoder.rounds():
        timed.rounds.append(0.0)
    stats = decoder.stats
    passes = Counter(bench.draft.passes) if bench.draft is not None else Counter()
    part = Part(stats.tokens, stats.rounds, Counter(target.passes), passes, steady(timed.rounds[:-1]))
    return part, stats


def steady(seconds: Sequence[float]) -> float:
    """The sum of many short times without what the machine did in between: the longest twentieth is taken to
    be as long as the others are on average."""
    kept = sorted(seconds)[: max(1, len(seconds) - len(seconds) // 20)]
    return max(0.0, sum(kept) / len(kept) * len(seconds)) if kept else 0.0


def with_widths(spec: SessionSpec, widths: Sequence[int] | None, widest: int) -> SessionSpec:
    """The spec of a target as another place would run it."""
    return replace(spec, widths=tuple(widths) if widths is not None else None, max_width=widest)


class Timed(WrappedDrafter):
    """`drafter`, with the seconds it takes in each of `rounds` by `clock`, beside the draft passes that
    `meter` counts. Whoever drives it adds a round to the list after each."""

    def __init__(self, drafter: Drafter, meter: Metered | None, clock: Clock) -> None:
        super().__init__(drafter)
        self.rounds = [0.0]
        self._meter, self._clock = meter, clock

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        self._drafter.begin(tokens, keep)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        start = self._own()
        tree = self._drafter.draft(tokens, limits)
        self.rounds[-1] += self._own() - start
        return tree

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        start = self._own()
        self._drafter.accept(tree, path)
        self.rounds[-1] += self._own() - start

    def _own(self) -> float:
        return self._clock() - (self._meter.seconds if self._meter is not None else 0.0)
