"""From a row of logits to the distribution a token is drawn from, identically in plain and in tree
decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.logits import NotFinite, top_token, top_tokens
from hexgraft.host.randomness import gumbels
from hexgraft.host.session import Floats, Rows
from hexgraft.models.errors import UsageError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the best token; `top_k` 0, `top_p` 1 and `min_p` 0 filter
    nothing.

    `repetition` divides positive and multiplies negative logits of every token seen so far, prompt included
    (CTRL, arXiv 1909.05858); `presence` and `frequency` subtract from the logits of generated tokens, once
    and per occurrence. Order: penalties, temperature, top-k, top-p, min-p.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        # A comparison with "nan" is never true, so that it is refused by whatever range there is.
        for ok, what, example in (
            (0 <= self.temperature < np.inf, f"--temperature {self.temperature} is not 0 or more", "0.8"),
            (self.top_k >= 0, f"--top-k {self.top_k} is negative", "40"),
            (0 < self.top_p <= 1, f"--top-p {self.top_p} is not above 0 and at most 1", "0.95"),
            (0 <= self.min_p <= 1, f"--min-p {self.min_p} is not in 0..1", "0.05"),
            (0 <= self.seed < 1 << 64, f"--seed {self.seed} is not in 0..2^64-1", "1"),
            (
                1e-3 <= self.repetition <= 1e3,
                f"--repetition-penalty {self.repetition} is not in 0.001..1000",
                "1.1",
            ),
            (abs(self.presence) <= 1e3, f"--presence-penalty {self.presence} is not in -1000..1000", "0.5"),
            (
                abs(self.frequency) <= 1e3,
                f"--frequency-penalty {self.frequency} is not in -1000..1000",
                "0.5",
            ),
        ):
            if not ok:
                raise UsageError(what, f"example: {what.split()[0]} {example}")

    @property
    def penalised(self) -> bool:
        return self.repetition != 1.0 or self.presence != 0.0 or self.frequency != 0.0


class History:
    """The tokens penalties look at: the prompt, what was generated, and the accepted part of the current
    path."""

    def __init__(self, prompt: Iterable[int] = ()) -> None:
        self._all = Counter(prompt)
        self._generated: Counter[int] = Counter()

    def append(self, token: int) -> None:
        self._all[token] += 1
        self._generated[token] += 1

    def copy(self) -> History:
        other = History()
        other._all, other._generated = self._all.copy(), self._generated.copy()
        return other

    def after(self, tokens: Sequence[int]) -> History:
        """This history and some generated tokens more, as a copy."""
        other = self.copy()
        for token in tokens:
            other.append(token)
        return other

    def penalise(
        self, logits: NDArray[np.float64], sampling: Sampling, subset: NDArray[np.integer] | None = None
    ) -> None:
        """Apply the penalties of `sampling` to one row, in place.

        `logits` are those of the whole vocabulary, or of the ascending token ids in `subset`.
        """
        if sampling.repetition != 1.0 and self._all:
            places, _ = _places(self._all, subset)
            chosen = logits[places]
            logits[places] = np.where(chosen > 0, chosen / sampling.repetition, chosen * sampling.repetition)
        if (sampling.presence or sampling.frequency) and self._generated:
            places, counts = _places(self._generated, subset)
            logits[places] -= sampling.presence + sampling.frequency * counts


def _places(
    counts: Counter[int], subset: NDArray[np.integer] | None
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Where the counted tokens stand in a row, and how often they were counted."""
    ids = np.fromiter(counts, np.intp)
    often = np.fromiter(counts.values(), np.float64)
    if subset is None:
        return ids, often
    places = np.searchsorted(subset, ids)
    there = subset[np.minimum(places, len(subset) - 1)] == ids
    return places[there], often[there]


_CERTAIN = np.zeros(1)
"""Log weights where only one token can be drawn."""
_CERTAIN.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Distribution:
    """Tokens that can be drawn: `ids` ascending, `log_weights` up to a common constant, both [n]."""

    ids: NDArray[np.int64]
    log_weights: NDArray[np.float64]

    def probabilities(self) -> NDArray[np.float64]:
        weights = np.exp(self.log_weights - self.log_weights.max())
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    def draw(self, seed: int, position: int) -> int:
        """The token with the largest Gumbel-perturbed weight, the lowest id among equals."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        return int(self.ids[np.argmax(self.log_weights + gumbels(seed, position, self.ids))])


def distribution(logits: Floats, sampling: Sampling, history: History) -> Distribution:
    """The distribution after penalties, temperature and filters. Raises NotFinite for NaN or all-infinite
    rows."""
    row = logits.astype(np.float64)
    if sampling.penalised:
        history.penalise(row, sampling)
    if sampling.temperature == 0:
        return Distribution(np.array([top_token(row)]), _CERTAIN)
    if np.isnan(row).any() or not np.isfinite(row.max()):
        raise NotFinite
    ids = drawable(row, sampling)
    return Distribution(ids, row[ids])


def drawable(row: NDArray[np.float64], sampling: Sampling) -> NDArray[np.int64]:
    """Divide a finite, penalised row by the temperature in place; the ascending places its filters leave."""
    row -= row.max()
    with np.errstate(over="ignore"):
        row /= sampling.temperature
    ids = np.flatnonzero(row > -np.inf)
    if 0 < sampling.top_k < len(ids):
        ids = np.sort(top_tokens(row, sampling.top_k).astype(np.int64))
    if sampling.top_p < 1 or sampling.min_p > 0:
        ids = _nucleus(row, ids, sampling)
    return ids


def _nucleus(row: NDArray[np.float64], ids: NDArray[np.int64], sampling: Sampling) -> NDArray[np.int64]:
    """Keep the smallest set of best tokens whose mass reaches top_p, then those of at least min_p of the
    best."""
    order = ids[np.argsort(-row[ids], kind="stable")]
    weights = np.exp(row[order] - row[order[0]])
    before = np.cumsum(weights) - weights
    keep = before < sampling.top_p * weights.sum()
    keep &= weights >= sampling.min_p
    keep[0] = True
    return np.sort(order[keep])


def row_distribution(rows: Rows, row: int, sampling: Sampling, history: History) -> Distribution:
    """`distribution` of one row of a pass, fetching no more of it than the options need."""
    if sampling.temperature == 0 and not sampling.penalised:
        best = rows.topk(1, [row], log_sum=False)
        return Distribution(best.ids[0].astype(np.int64), _CERTAIN)
    return distribution(rows.logits(row), sampling, history)
