"""Compares two traces token by token: where they part first, how sure each was there, and whether rounding
explains it.

Rounds need not agree: traces of different drafters and tree sizes are comparable, since under `match` they
emit the same tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from hexgraft.host.randomness import gumbels
from hexgraft.host.sampling import History
from hexgraft.host.traces.border import at_border
from hexgraft.host.traces.trace import Judged, Trace, TraceRound
from hexgraft.models.errors import UsageError

NOISE_FLOAT32 = 1e-3
"""Between float32 sessions of different widths logits of SmolLM2 were measured to differ by up to 5e-5;
twenty times that still is far below the margin of a choice that means something."""
NOISE_OTHER = 0.1
"""Half precision keeps 11 bits: logits around 20 differ by some hundredths, more after quantisation."""
NOISE_ROUNDED = 1.0
"""Where a last digit may tip over a rounding of activations to 8 bits. Between one row and 16, differences of
two logits of SmolLM2 with fused attention were off by 0.3 in one token of ten, by 0.6 in one of a hundred."""
_FLOAT32 = ("cpu", "runner", "device")
"""Places that compute in float32; others have their provider in their name, as in "device-htp"."""
_BUDGETS = ("max-tokens", "interrupted", "lost", "failed", "cut off")
"""Ends that tell nothing about the text: the run was merely not continued."""

IDENTICAL, TIE, DIFFERENT = "identical", "tie", "different"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one trace stands at the first difference.

    `round` counts from 1, `node` is the one whose row chose `token` (None: the text had ended, with
    `finish`). `lead` is how far, in logits, this trace puts its own token before the other's, penalties and
    the noise of its draw included; `preference` the same in raw logits. Both None where not recorded.
    `border`: rounding may have decided that a filter of this trace dropped the other's token.
    """

    round: int | None
    node: int | None
    token: int | None
    finish: str
    judged: Judged | None
    margin: float | None
    lead: float | None = None
    preference: float | None = None
    border: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """`verdict` is "identical" as far as both go, "tie" (a difference that rounding explains) or
    "different".

    `common` leading tokens are equal. `swing` is how much the two traces disagree about the difference of
    the two logits in question; `reason` says in words what the verdict rests on.
    """

    verdict: str
    common: int
    emitted: tuple[int, int]
    places: tuple[Place, Place] | None
    swing: float | None
    noise: float
    reason: str


def default_noise(a: Trace, b: Trace) -> float:
    """Disagreement about a difference of two logits that passes as rounding."""
    headers = a.header, b.header
    if any(header.backend not in _FLOAT32 for header in headers):
        return NOISE_OTHER
    # One machine's sums come in one order, but for those of fused attention.
    elsewhere = len({header.backend == "device" for header in headers}) > 1
    tipping = any(header.precision.endswith("a8") and (header.joined or elsewhere) for header in headers)
    return NOISE_ROUNDED if tipping else NOISE_FLOAT32


def compare(a: Trace, b: Trace, noise: float | None = None) -> Comparison:
    """The first difference of two traces of the same question; UsageError for traces of different ones."""
    _check(a, b)
    noise = default_noise(a, b) if noise is None else noise
    ours, theirs = a.emitted, b.emitted
    emitted = (len(ours), len(theirs))
    common = next((i for i, (x, y) in enumerate(zip_longest(ours, theirs)) if x != y), len(ours))
    if common == min(emitted):
        return _ended(a, b, common, emitted, noise)
    places = (_place(a, common, noise, theirs[common]), _place(b, common, noise, ours[common]))
    preferences = [place.preference for place in places]
    swing = None if None in preferences else abs(sum(p for p in preferences if p is not None))
    verdict, reason = _judge(places, swing, noise)
    return Comparison(verdict, common, emitted, places, swing, noise, reason)


def _check(a: Trace, b: Trace) -> None:
    x, y = a.header, b.header
    if x.bundle != y.bundle:
        raise UsageError(
            f"the traces are of different bundles: {x.bundle[:12]} ({x.target}) and "
            f"{y.bundle[:12]} ({y.target})",
            "trace both runs with one bundle",
        )
    if x.prompt != y.prompt:
        place = next(i for i, (s, t) in enumerate(zip_longest(x.prompt, y.prompt)) if s != t)
        raise UsageError(
            f"the traces are of different prompts: {len(x.prompt)} and {len(y.prompt)} tokens, "
            f"which part at token {place}",
            "trace both runs with one prompt",
        )
    if x.sampling != y.sampling:
        raise UsageError(
            "the traces draw tokens differently: temperature, filters, penalties or seed are not the same",
            "trace both runs with the same sampling options",
        )
    free = x.verifier == y.verifier == "match"
    if not free and (x.verifier, x.drafter, x.tree_size) != (y.verifier, y.drafter, y.tree_size):
        raise UsageError(
            f"the verifiers {x.verifier} and {y.verifier} draw other tokens for other trees, "
            "so these traces cannot agree token for token",
            "compare runs of --verifier match, or of one drafter and tree size",
        )


def _ended(a: Trace, b: Trace, common: int, emitted: tuple[int, int], noise: float) -> Comparison:
    """One text is the beginning of the other."""
    if emitted[0] == emitted[1]:
        return Comparison(IDENTICAL, common, emitted, None, None, noise, f"all {common} tokens are the same")
    short, long = (a, b) if emitted[0] < emitted[1] else (b, a)
    narrower = short.finish == "length" and short.header.capacity < long.header.capacity
    if short.finish in _BUDGETS or narrower:
        reason = f"the first {common} tokens are the same; then one run ends ({short.finish})"
        return Comparison(IDENTICAL, common, emitted, None, None, noise, reason)
    ended = Place(None, None, None, short.finish, None, None)
    places = (ended, _place(long, common, noise))
    reason = f"after {common} equal tokens one text ends ({short.finish}), the other goes on"
    ordered = places if short is a else places[::-1]
    return Comparison(DIFFERENT, common, emitted, ordered, None, noise, reason)


def _place(trace: Trace, index: int, noise: float, rival: int | None = None) -> Place:
    """Where `trace` emitted its token number `index`, against the `rival` the other trace emitted."""
    current, at = _round_of(trace, index)
    judged = current.judged[at] if current.judged else None
    margin = current.margins[at] if current.margins else None
    lead, preference, border = None, None, False
    token = current.emitted[at]
    if judged is not None and rival is not None:
        logits = dict(judged.top) | {judged.token: judged.logit}
        mine, other = logits[token], logits.get(rival)
        if mine is not None and other is not None:
            preference = mine - other
            lead = _lead(trace, index, (token, rival), (mine, other))
            border = at_border(trace, index, judged, rival, noise)
    node = current.accepted[at]
    return Place(current.number, node, token, trace.finish, judged, margin, lead, preference, border)


def _round_of(trace: Trace, index: int) -> tuple[TraceRound, int]:
    for current in trace.rounds:
        if index < len(current.emitted):
            return current, index
        index -= len(current.emitted)
    raise UsageError(f"the trace has no emitted token {index}")


def _lead(trace: Trace, index: int, tokens: tuple[int, int], logits: tuple[float, float]) -> float | None:
    """First token before second, in logits, by the rule that drew: penalties, then the noise of `match`.

    Filters (top-k, top-p, min-p) are left out: both tokens passed those of their own trace, and `at_border`
    tells of those of the other. None under a residual verifier, whose draws are not a race.
    """
    header = trace.header
    if header.verifier != "match":
        return None
    order = np.argsort(tokens)
    ids = np.array(tokens, np.int64)[order]
    row = np.array(logits, np.float64)[order]
    emitted = trace.emitted[:index]
    History(header.prompt).after(emitted).penalise(row, header.sampling, ids)
    position = len(header.prompt) + index
    row += header.sampling.temperature * gumbels(header.sampling.seed, position, ids)
    first = int(order.argmin())
    return float(row[first] - row[1 - first])


def _judge(places: tuple[Place, Place], swing: float | None, noise: float) -> tuple[str, str]:
    if swing is None or not math.isfinite(swing):
        unknown = next((p for p in places if p.preference is None), places[0])
        known = len(unknown.judged.top) if unknown.judged else 0
        return DIFFERENT, (
            f"how close it was is not known: one token is not among the {known} best of the other trace"
            if known
            else "how close it was is not known: a trace has no candidates"
        )
    if swing > noise:
        return DIFFERENT, f"the logits disagree by {swing:.2g}, more than the noise of {noise:.2g}"
    # Whoever drew a token that loses the race must have dropped the one that wins it.
    losers = [place for place in places if place.lead is not None and place.lead < -noise]
    if losers and all(place.border for place in losers):
        return TIE, (
            f"the logits agree within {swing:.2g}, and one token lies so close at the border of top-k, top-p "
            "or min-p that rounding decides"
        )
    if any(place.lead is not None and abs(place.lead) > noise for place in places):
        return DIFFERENT, (
            f"the logits agree within {swing:.2g}, yet other tokens were chosen from them: "
            "no rounding explains that"
        )
    return TIE, f"the two tokens are so close that rounding decides: {swing:.2g} is below {noise:.2g}"


def as_dict(comparison: Comparison, texts: dict[int, str]) -> dict[str, Any]:
    """For --json; token texts come from `texts`."""

    def place(found: Place) -> dict[str, Any]:
        return {
            "round": found.round,
            "node": found.node,
            "token": found.token,
            "text": None if found.token is None else texts.get(found.token),
            "finish": found.finish,
            "margin": found.margin,
            "lead": found.lead,
            "top": [
                {"token": token, "text": texts.get(token), "logit": logit, "probability": chance}
                for token, logit, chance in candidates(found.judged)
            ],
        }

    return {
        "verdict": comparison.verdict,
        "reason": comparison.reason,
        "common_tokens": comparison.common,
        "tokens": list(comparison.emitted),
        "noise": comparison.noise,
        "swing": comparison.swing,
        "first_difference": [place(p) for p in comparison.places] if comparison.places else None,
    }


def candidates(judged: Judged | None) -> list[tuple[int, float | None, float | None]]:
    """(token, logit, probability at temperature 1) of the recorded candidates, best first."""
    if judged is None:
        return []
    total = judged.log_sum
    return [
        (token, logit, None if logit is None or total is None else math.exp(logit - total))
        for token, logit in judged.top
    ]
