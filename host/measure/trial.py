"""A setting tried on transcripts: the rounds a run of it has, without the target's passes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.lab.comparison import Transcript, merge_tallies
from hexgraft.host.lab.scripted_session import ScriptedSession
from hexgraft.host.measure.metered import Clock, Metered
from hexgraft.host.measure.setting import Setting
from hexgraft.host.session import SessionSpec
from hexgraft.host.stats import Stats, Tally

Passes = Counter[tuple[int, int]]
"""How often a pass of so many rows at such a fill of the cache happened."""


@dataclass(slots=True)
class Part:
    """One transcript's share of a trial. `host` are the seconds beside passes that plain rounds have not,
    `each` those of every round, with the tokens it emitted."""

    tokens: int
    rounds: int
    target: Passes
    draft: Passes
    host: float
    each: list[tuple[float, int]] = field(default_factory=list, repr=False)

    @property
    def trees(self) -> int:
        """Rounds in which the target read more than the root."""
        return sum(count for (rows, _), count in self.target.items() if rows > 1)


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
        """Seconds a round of drafting and walking trees, beside all passes and beyond a plain round's."""
        return sum(part.host for part in self.parts) / self.rounds if self.rounds else 0.0


@dataclass(slots=True)
class Bench:
    """What trials share: the target's sizes, transcripts with the options they were made with, and the
    draft's meter where there is a draft model."""

    spec: SessionSpec
    transcripts: Sequence[Transcript]
    options: DecodeOptions
    draft: Metered | None = None
    clock: Clock = time.perf_counter
    _plain: float | None = field(default=None, init=False)

    @property
    def plain_round(self) -> float:
        """Seconds of a plain round beside its pass, measured as trials are: what a round of a trial takes
        beyond it is the tree's."""
        if self._plain is None:
            rounds = [
                seconds
                for transcript in self.transcripts
                for seconds, _ in _run(self, Setting("plain", 1), NoDraft(), transcript)[2]
            ]
            self._plain = steady(rounds) / len(rounds) if rounds else 0.0
        return self._plain


def run_trial(bench: Bench, setting: Setting, drafter: Drafter) -> Trial:
    """Try a setting's drafter on every transcript."""
    trial = Trial(setting)
    for transcript in bench.transcripts:
        part, stats, rounds = _run(bench, setting, drafter, transcript)
        part.host = max(0.0, steady([each[0] for each in rounds]) - part.rounds * bench.plain_round)
        part.each = [(seconds - bench.plain_round, tokens) for seconds, tokens in rounds]
        trial.parts.append(part)
        merge_tallies(trial.by_depth, stats.by_depth)
        merge_tallies(trial.by_rank, stats.by_rank)
    return trial


def _run(
    bench: Bench, setting: Setting, drafter: Drafter, transcript: Transcript
) -> tuple[Part, Stats, list[tuple[float, int]]]:
    """One transcript's rounds: what they were, and of each the seconds beside all passes and the tokens."""
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
    decoder = Decoder(target, drafter, options)
    decoder.begin(transcript.prompt)
    meters = [target] if bench.draft is None else [target, bench.draft]
    for meter in meters:
        meter.clear()
    rounds: list[tuple[float, int]] = []
    while decoder.finish is None:
        begun, inside = bench.clock(), sum(meter.seconds for meter in meters)
        emitted = len(decoder.step().tokens)
        inside = sum(meter.seconds for meter in meters) - inside
        rounds.append((bench.clock() - begun - inside, emitted))
    stats = decoder.stats
    passes = Counter(bench.draft.passes) if bench.draft is not None else Counter()
    return Part(stats.tokens, stats.rounds, Counter(target.passes), passes, 0.0), stats, rounds


def steady(seconds: Sequence[float]) -> float:
    """The sum of many short times without what the machine did in between: the longest twentieth is taken to
    be as long as the others are on average."""
    kept = sorted(seconds)[: max(1, len(seconds) - len(seconds) // 20)]
    return max(0.0, sum(kept) / len(kept) * len(seconds)) if kept else 0.0


def with_widths(spec: SessionSpec, widths: Sequence[int] | None, widest: int) -> SessionSpec:
    """The spec of a target as another place would run it; where any width runs there, trees are no wider than
    here."""
    if widths is None:
        return replace(spec, widths=None, max_width=min(widest, spec.tree_width))
    return replace(spec, widths=tuple(widths), max_width=widest)
