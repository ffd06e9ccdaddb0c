"""How `hexgraft tune` tells what it found: what was measured, and apart from it what is foretold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.table import Table
from hexgraft.host.measure.contest import Result
from hexgraft.host.measure.decision import Verdict
from hexgraft.host.measure.profile import LatencyProfile
from hexgraft.host.measure.tune import PAYS, Guess, Search

_SHOWN = 8


def show_chosen(
    search: Search, guesses: Sequence[Guess], verdict: Verdict, path: Path | None, *, as_json: bool
) -> None:
    """The settings that were run, the next best predictions, and the choice."""
    choice = verdict.choice
    if as_json:
        print_json(
            {
                "choice": msgspec.to_builtins(choice) | {"speedup": round(choice.speedup, 4)},
                "arguments": choice.setting.arguments() if choice.setting is not None else ["--plain"],
                "plain": _speed(verdict.plain) | {"predicted": round(search.plain, 3)},
                "settings": [
                    _as_dict(search, guess) | {"measured": _speed(result)} for guess, result in verdict.tried
                ],
                "predictions": [_as_dict(search, guess) for guess in guesses],
                "file": str(path) if path is not None else None,
            }
        )
        return
    table = _table(f"plain decoding: {verdict.plain.speed.median:.1f} tokens/s measured")
    table.add_column("measured", justify="right")
    table.add_column("against plain", justify="right")
    for guess, result in verdict.tried:
        ratio = result.ratio
        spread = f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
        table.add_row(*_row(guess), f"{result.speed.median:.1f}", spread)
    run = {guess.title for guess, _ in verdict.tried}
    for guess in [guess for guess in guesses if guess.title not in run][: max(0, _SHOWN - len(run))]:
        table.add_row(*_row(guess), "", "")
    stdout().print(table)
    worst = search.worst(verdict.kept[verdict.place][0])
    say(f"kept to what pays, the worst prompt takes {worst:.2f} times plain decoding's seconds, by the table")
    if choice.setting is None:
        say(f"no tree brings {PAYS:.2f}x here kept to what pays: plain decoding is chosen")
        fixed, result = max(verdict.fixed, key=lambda each: each[1].ratio.median)
        if result.ratio.median >= PAYS:
            say(
                f"not kept to it, {fixed.title} brings {result.ratio.median:.2f}x, and may slow some texts "
                f"down; as options: {' '.join(fixed.setting.arguments())}"
            )
    else:
        say(f"chosen: {choice.setting.title}; as options: {' '.join(choice.setting.arguments())}")
    say(f"run and chat do so from now on ({path})" if path is not None else "nothing was written")


def show_foreseen(
    profile: LatencyProfile,
    bundle: Bundle,
    search: Search,
    guesses: Sequence[Guess],
    adapted: Guess,
    *,
    as_json: bool,
) -> None:
    """Predictions alone, with where the table is from."""
    source = profile.source
    if as_json:
        print_json(
            {
                "predictions_only": True,
                "source": msgspec.to_builtins(source),
                "machine": msgspec.to_builtins(profile.machine),
                "target": profile.target.name,
                "plain": {"predicted": round(search.plain, 3)},
                "predictions": [_as_dict(search, guess) for guess in (adapted, *guesses)],
            }
        )
        return
    out = stdout()
    chip = profile.machine.chip or profile.machine.name
    out.print(f"predictions for {chip}, not measurements: the table is {source.kind}, by {source.by}")
    for citation in source.citations:
        out.print(f"  {citation.figure}: {citation.address}")
    if profile.target.name != bundle.target.name:
        out.print(f"passes are those of {profile.target.name}, acceptance is that of {bundle.target.name}")
    computed = sum(each.how == "interpolated" for each in profile.target.passes)
    if computed:
        out.print(f"{computed} of {len(profile.target.passes)} times of the target are interpolated")
    table = _table(f"plain decoding: {search.plain:.1f} tokens/s predicted")
    for guess in (adapted, *guesses[:_SHOWN]):
        table.add_row(*_row(guess))
    out.print(table)
    if max(adapted.speedup, guesses[0].speedup) < PAYS:
        say(f"no tree promises {PAYS:.2f}x there: plain decoding is best")


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("setting")
    for column in ("tokens a round", "draft passes a round", "predicted", "speed-up"):
        table.add_column(column, justify="right")
    return table


def _row(guess: Guess) -> list[str]:
    return [
        guess.title,
        f"{guess.trial.tokens_per_round:.2f}",
        f"{guess.trial.passes_per_round:.2f}",
        f"{guess.speed:.1f}",
        f"{guess.speedup:.2f}x",
    ]


def _as_dict(search: Search, guess: Guess) -> dict[str, Any]:
    trial = guess.trial
    return {
        "title": guess.title,
        "setting": msgspec.to_builtins(guess.setting),
        "adaptive": guess.adaptive,
        "tokens_per_round": round(trial.tokens_per_round, 4),
        "draft_passes_per_round": round(trial.passes_per_round, 4),
        "predicted": round(guess.speed, 3),
        "predicted_speedup": round(guess.speedup, 4),
        "worst_prompt": round(search.worst(guess), 4),
        "acceptance_by_depth": [[t.accepted, t.tried] for t in trial.by_depth],
        "acceptance_by_rank": [[t.accepted, t.tried] for t in trial.by_rank],
    }


def _speed(result: Result) -> dict[str, float]:
    return {
        "speed": round(result.speed.median, 3),
        "ratio": round(result.ratio.median, 4),
        "ratio_low": round(result.ratio.low, 4),
        "ratio_high": round(result.ratio.high, 4),
    }
