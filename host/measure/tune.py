"""Finds the setting that pays most: every setting tried on transcripts and priced by the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product

import msgspec

from hexgraft.host.drafters.adaptive import Adaptive
from hexgraft.host.drafters.calibration import Lesson
from hexgraft.host.drafters.knobs import KNOBS
from hexgraft.host.drafters.ledger import FREE, Toll
from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.metered import Metered
from hexgraft.host.measure.profile import ProfileError
from hexgraft.host.measure.setting import (
    Maker,
    OpenDraft,
    Setting,
    beginnings,
    halfway,
    neighbours,
    tree_sizes,
)
from hexgraft.host.measure.toll import fit_toll
from hexgraft.host.measure.trial import Bench, Part, Trial, run_trial

PAYS = 1.05
"""Trees that promise less than this over plain decoding are not worth their trouble."""

_LEAST = 0.005
"""Ranks that are accepted less often are left out of a table."""
_STARTS = 2
"""Drafters whose best setting is improved coordinate by coordinate."""


@dataclass(slots=True)
class Guess:
    """A setting, what its trial found, and the tokens a second that predicts, `speedup` over plain ones."""

    setting: Setting
    trial: Trial
    speed: float
    speedup: float
    adaptive: bool = False
    prior: tuple[float, ...] = ()
    toll: Toll = FREE

    @property
    def title(self) -> str:
        return self.setting.title + (", adaptive" if self.adaptive else "")


@dataclass(slots=True)
class Search:
    """Every setting tried so far. `open_draft` gives the session the bench counts the draft's passes of;
    `progress` is told each setting once it is tried."""

    bench: Bench
    costs: Costs
    make: Maker
    open_draft: OpenDraft
    progress: Callable[[str], None] = field(default=lambda title: None)
    guesses: dict[Setting, Guess] = field(default_factory=dict)
    beyond: dict[str, float] = field(default_factory=dict)
    """Seconds that a round with a tree of a drafter was found to take beyond what table and trials say."""
    pace: float = 1.0
    """How many times as long everything takes by now as when the table was measured."""

    @property
    def plain(self) -> float:
        """Tokens a second of plain decoding, predicted."""
        return self.costs.plain_speed(self.bench.transcripts) / self.pace

    def guess(self, setting: Setting) -> Guess:
        """Try a setting, once."""
        if setting not in self.guesses:
            drafter = self.make(setting, self.open_draft)
            try:
                trial = run_trial(self.bench, setting, drafter)
            finally:
                drafter.close()
            self.guesses[setting] = self._priced(_longer(trial, self.beyond.get(setting.drafter, 0.0)))
            self.progress(setting.title)
        return self.guesses[setting]

    def run(self, drafters: Sequence[str], sizes: Sequence[int]) -> list[Guess]:
        """Every drafter at every size, then the best drafters' best settings one coordinate at a time until
        none helps. All guesses, the fastest first."""
        for name in drafters:
            try:
                for size, options in product(reversed(sizes), beginnings(name)):
                    first = self._first(name, size, sizes[-1])
                    self.guess(msgspec.structs.replace(first, options=(*first.options, *options)))
            except ProfileError:
                continue  # without times of a draft model this drafter cannot be predicted
        between = sizes if self.costs.target.padded else halfway(sizes)
        for guess in self.best_of_drafters():
            self._climb(guess, between)
        return self.ranking()

    def best_of_drafters(self) -> list[Guess]:
        """The best setting of each of the few best drafters, the fastest first."""
        best: dict[str, Guess] = {}
        for guess in self.ranking():
            best.setdefault(guess.setting.drafter, guess)
        return list(best.values())[:_STARTS]

    def add_to_trees(self, drafter: str, seconds: float) -> None:
        """Have every tree of a drafter take so much more, or less, in what was tried and what will be."""
        self.beyond[drafter] = self.beyond.get(drafter, 0.0) + seconds
        for setting, guess in self.guesses.items():
            if setting.drafter == drafter:
                self.guesses[setting] = self._priced(_longer(guess.trial, seconds))

    def keep_pace(self, pace: float) -> None:
        """Have everything take so many times what the table says; speed-ups stay what they are."""
        self.pace = pace
        self.guesses = {setting: self._priced(guess.trial) for setting, guess in self.guesses.items()}

    def _first(self, name: str, size: int, largest: int) -> Setting:
        """A drafter's setting of a size to begin with; one that has a table gets the acceptance measured."""
        plain = Setting(name, size)
        if not any(field.name == "table" for kind in KNOBS.get(name, ()) for field in fields(kind)):
            return plain
        measured = self.guess(Setting(name, largest)).trial.by_rank
        rates = [f"{tally.rate:.3f}" for tally in measured if tally.rate >= _LEAST]
        return msgspec.structs.replace(plain, options=("table=" + ",".join(rates),)) if rates else plain

    def ranking(self) -> list[Guess]:
        """All guesses, the fastest first; of equals the smaller tree."""
        return sorted(self.guesses.values(), key=lambda each: (-each.speed, each.setting.tree_size))

    def adapted(self, guess: Guess) -> Guess:
        """The same drafter kept to what pays, tried and priced likewise, after a first time to learn how far
        its probabilities can be trusted and what it takes the host."""
        lesson, toll = Lesson(), Toll(asking=guess.trial.drafting)
        toll = self._toll(replace(guess, toll=toll), lesson)
        taught = replace(guess, adaptive=True, prior=lesson.shifts, toll=toll)
        priced = self._priced(self._try_adaptive(taught, self.adaptive(taught)))
        return replace(taught, trial=priced.trial, speed=priced.speed, speedup=priced.speedup)

    def adaptive(
        self, guess: Guess, lesson: Lesson | None = None, sizes: Sequence[int] | None = None
    ) -> Adaptive:
        """The guess's drafter, kept to what pays, in trees of `sizes`, or of any that there are."""
        costs, setting = replace(self.costs, toll=guess.toll), guess.setting
        if sizes is not None:
            setting = msgspec.structs.replace(setting, tree_size=sizes[-1])
        return adapt(
            self.make,
            setting,
            self.open_draft,
            costs,
            sizes or self.sizes,
            guess.speedup,
            guess.prior,
            lesson,
        )

    def _toll(self, guess: Guess, lesson: Lesson) -> Toll:
        """What the guess's drafter takes the host, kept to what pays, in trees of all sizes and in small
        ones: where all are alike, nobody can tell what a node takes."""
        parts: list[Part] = []
        drafted: list[Sequence[int]] = []
        for sizes, taught in ((None, lesson), (self.sizes[:1], None)):
            drafter = self.adaptive(guess, taught, sizes)
            parts += self._try_adaptive(guess, drafter).parts
            drafted += drafter.drafted
        return fit_toll(parts, drafted, guess.toll, self.beyond.get(guess.setting.drafter, 0.0))

    def _try_adaptive(self, guess: Guess, drafter: Adaptive) -> Trial:
        largest = msgspec.structs.replace(guess.setting, tree_size=self.sizes[-1])
        try:
            trial = run_trial(self.bench, largest, drafter)
        finally:
            drafter.close()
        return _longer(trial, self.beyond.get(guess.setting.drafter, 0.0))

    @property
    def sizes(self) -> list[int]:
        """Nodes trees may have: those that fill a graph."""
        return sizes_of(self.costs, self.bench.spec.tree_width)

    def worst(self, guess: Guess) -> float:
        """Seconds against plain ones of the transcript that fares worst."""
        parts = zip(guess.trial.parts, self.bench.transcripts, strict=True)
        return max(self.costs.seconds(part) / self.costs.plain_seconds(text) for part, text in parts)

    def _priced(self, trial: Trial) -> Guess:
        speed = self.costs.speed(trial) / self.pace
        return Guess(trial.setting, trial, speed, speed / self.plain)

    def _climb(self, guess: Guess, sizes: Sequence[int]) -> None:
        while True:
            around = [self.guess(setting) for setting in neighbours(guess.setting, sizes)]
            top = max(around, key=lambda each: each.speed, default=guess)
            if top.speed <= guess.speed:
                return
            guess = top


def _longer(trial: Trial, seconds: float) -> Trial:
    """The trial, had each of its rounds with a tree taken so much longer."""
    parts = [replace(part, host=max(0.0, part.host + part.trees * seconds)) for part in trial.parts]
    return replace(trial, parts=parts)


def sizes_of(costs: Costs, widest: int) -> list[int]:
    """Tree sizes to try where costs are those of `costs` and a tree has `widest` nodes at most."""
    return [size for size in tree_sizes(costs.target.widths) if size <= widest]


def adapt(
    make: Maker,
    setting: Setting,
    open_draft: OpenDraft,
    costs: Costs,
    sizes: Sequence[int],
    foreseen: float,
    prior: Sequence[float] = (),
    lesson: Lesson | None = None,
) -> Adaptive:
    """A setting's drafter kept to what pays by `costs`, in trees of `sizes`, at first of the setting's."""
    meters: list[Metered] = []

    def counted() -> Metered:
        meters.append(Metered(open_draft()))
        return meters[-1]

    drafter = make(setting, counted)
    return Adaptive(
        drafter,
        costs,
        sorted({*sizes, setting.tree_size}),
        setting.tree_size,
        foreseen=foreseen,
        meter=meters[-1] if meters else None,
        prior=prior,
        lesson=lesson,
        knobs=setting.options,
    )
