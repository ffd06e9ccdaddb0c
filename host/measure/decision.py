"""From predictions to a choice: the best few run beside plain decoding, the fastest taken if it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hexgraft.host.measure.choice import Choice
from hexgraft.host.measure.contest import Contender, Contest, Result
from hexgraft.host.measure.probe import contender
from hexgraft.host.measure.tune import PAYS, Guess, Search


@dataclass(frozen=True, slots=True)
class Verdict:
    """The settings that were run with their results, the last one kept to what pays; plain decoding beside
    them; and what follows."""

    plain: Result
    tried: list[tuple[Guess, Result]]
    choice: Choice

    @property
    def pays(self) -> bool:
        return self.choice.setting is not None


def decide(search: Search, contest: Contest, guesses: Sequence[Guess], adapted: Guess) -> Verdict:
    """Run `guesses` and `adapted`, the first of them kept to what pays, and choose."""
    plain, results = contest.run(_contenders(search, contest, guesses, adapted))
    *fixed, kept = results
    place = max(range(len(fixed)), key=lambda number: fixed[number].ratio.median)
    if kept.ratio.median >= fixed[place].ratio.median:
        place = 0
    chosen, result = guesses[place], fixed[place]
    pays = max(result.ratio.median, kept.ratio.median if place == 0 else 0.0) >= PAYS
    alike = chosen.setting.drafter == adapted.setting.drafter
    choice = Choice(
        temperature=contest.options.sampling.temperature,
        setting=chosen.setting if pays else None,
        tokens=sum(len(transcript.answer) for transcript in search.bench.transcripts),
        predicted=chosen.speed,
        predicted_plain=search.plain,
        measured=result.speed.median,
        measured_plain=plain.speed.median,
        measured_adaptive=kept.speed.median if place == 0 else 0.0,
        drafting=chosen.trial.drafting,
        prior=adapted.prior if alike else (),
        by_depth=[(tally.accepted, tally.tried) for tally in chosen.trial.by_depth],
        by_rank=[(tally.accepted, tally.tried) for tally in chosen.trial.by_rank],
    )
    return Verdict(plain, list(zip([*guesses, adapted], results, strict=True)), choice)


def _contenders(
    search: Search, contest: Contest, guesses: Sequence[Guess], adapted: Guess
) -> list[Contender]:
    found = [contender(search, contest, guess) for guess in guesses]
    sized = replace(contest.options, tree_size=search.sizes[-1], tree_depth=adapted.setting.tree_depth)
    return [*found, Contender(adapted.title, search.adaptive(adapted), sized)]
