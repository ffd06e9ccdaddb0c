"""From predictions to a choice: the best few run beside plain decoding, as they are and kept to what pays, as
which a tuned run decodes: the fastest so is taken if it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hexgraft.host.measure.choice import Choice
from hexgraft.host.measure.contest import Contender, Contest, Result
from hexgraft.host.measure.probe import contender
from hexgraft.host.measure.tune import PAYS, Guess, Search


@dataclass(frozen=True, slots=True)
class Verdict:
    """The settings that were run with their results, `fixed` as they are and `kept` to what pays, of which
    the one at `place` is best; plain decoding beside them; and what follows."""

    plain: Result
    fixed: list[tuple[Guess, Result]]
    kept: list[tuple[Guess, Result]]
    place: int
    choice: Choice

    @property
    def pays(self) -> bool:
        return self.choice.setting is not None

    @property
    def tried(self) -> list[tuple[Guess, Result]]:
        return [*self.fixed, *self.kept]


def decide(search: Search, contest: Contest, guesses: Sequence[Guess], adapted: Sequence[Guess]) -> Verdict:
    """Run `guesses` and, kept to what pays, `adapted`, which are as many, and choose."""
    plain, results = contest.run(_contenders(search, contest, guesses, adapted))
    fixed, kept = results[: len(guesses)], results[len(guesses) :]
    place = max(range(len(kept)), key=lambda number: kept[number].ratio.median)
    chosen = guesses[place]
    choice = Choice(
        temperature=contest.options.sampling.temperature,
        setting=chosen.setting if kept[place].ratio.median >= PAYS else None,
        tokens=sum(len(transcript.answer) for transcript in search.bench.transcripts),
        predicted=chosen.speed,
        predicted_plain=search.plain,
        measured=fixed[place].speed.median,
        measured_plain=plain.speed.median,
        measured_adaptive=kept[place].speed.median,
        speedup=kept[place].ratio.median,
        toll=adapted[place].toll,
        prior=adapted[place].prior,
        by_depth=[(tally.accepted, tally.tried) for tally in chosen.trial.by_depth],
        by_rank=[(tally.accepted, tally.tried) for tally in chosen.trial.by_rank],
    )
    as_they_are, kept_to_it = list(zip(guesses, fixed, strict=True)), list(zip(adapted, kept, strict=True))
    return Verdict(plain, as_they_are, kept_to_it, place, choice)


def _contenders(
    search: Search, contest: Contest, guesses: Sequence[Guess], adapted: Sequence[Guess]
) -> list[Contender]:
    found = [contender(search, contest, guess) for guess in guesses]
    for guess in adapted:
        sized = replace(contest.options, tree_size=search.sizes[-1], tree_depth=guess.setting.tree_depth)
        found.append(Contender(guess.title, search.adaptive(guess), sized))
    return found
