"""Learns how far a draft's probabilities can be trusted, from what the target accepted."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from hexgraft.host.tree import TokenTree

_EDGES = [-math.log(share) for share in (0.9, 0.75, 0.5, 0.25, 0.1, 0.03)]
"""Bins of -log q, finer where trees are decided."""
_PRIOR = 4.0
"""Accepted nodes a bin's own figures must outweigh."""
_MEMORY = 0.98
"""What a round's figures count one round later: the last fifty rounds or so decide."""


class Calibration:
    """Per bin of confidence, how often nodes were accepted over how often the draft said they would be.

    At a judged node the target's token is compared with every child, so each child there is one trial whose
    success the draft put at q. A draft too sure of itself gets flatter and wider trees, one too modest deeper
    ones. The output does not depend on it. A drafter starts a new one with every new text, so that runs
    repeat.
    """

    def __init__(self, prior: Sequence[float] = ()) -> None:
        """`prior` are the `Lesson.shifts` of other texts, to begin with; without, the draft is believed."""
        bins = len(_EDGES) + 1
        self._shift = list(prior) if len(prior) == bins else [0.0] * bins
        self._said = [_PRIOR] * bins
        self._expected = [_PRIOR * math.exp(shift) for shift in self._shift]
        self._done = list(self._expected)
        self._idle = 0  # rounds without a trial, whose fading is still to come

    def correct(self, log: float) -> float:
        """The log of the measured acceptance for the log of a draft probability, never above 0."""
        if self._idle:
            self._fade(0)
            self._set_shift()
        return min(0.0, log + self._shift[bisect_left(_EDGES, -log)])

    def learn(self, trials: Iterable[tuple[float, bool]]) -> None:
        """Take in a round's trials: the draft's probability of a child, and whether it was accepted."""
        known = [(share, accepted) for share, accepted in trials if share > 0]
        if not known:
            self._idle += 1
            return
        self._fade(1)
        for share, accepted in known:
            place = _bin(share)
            self._said[place] += share
            self._done[place] += accepted
        self._set_shift()

    def rest(self, rounds: int) -> None:
        """So many rounds pass without a trial."""
        self._idle += rounds

    def _fade(self, rounds: int) -> None:
        """Have what was learned count so many rounds less, those without a trial besides."""
        left, self._idle = _MEMORY ** (rounds + self._idle), 0
        self._said = [_PRIOR + (value - _PRIOR) * left for value in self._said]
        pairs = zip(self._done, self._expected, strict=True)
        self._done = [prior + (value - prior) * left for value, prior in pairs]

    def _set_shift(self) -> None:
        self._shift = [math.log(done / said) for done, said in zip(self._done, self._said, strict=True)]


class Lesson:
    """What many texts together teach, for the `Calibration` of those to come."""

    def __init__(self) -> None:
        self._said = [_PRIOR] * (len(_EDGES) + 1)
        self._done = list(self._said)

    def add(self, trials: Iterable[tuple[float, bool]]) -> None:
        for share, accepted in trials:
            if share > 0:
                self._said[_bin(share)] += share
                self._done[_bin(share)] += accepted

    @property
    def shifts(self) -> tuple[float, ...]:
        """Per bin, the log of the acceptance measured over the one said."""
        return tuple(math.log(done / said) for done, said in zip(self._done, self._said, strict=True))


def _bin(share: float) -> int:
    return bisect_left(_EDGES, -math.log(share))


def trials(tree: TokenTree, path: Sequence[int]) -> list[tuple[float, bool]]:
    """The trials of a round: the children of every node on the accepted path."""
    if len(tree) == 1:
        return []
    accepted, shares = set(path), tree.probabilities.tolist()
    return [(shares[child], child in accepted) for node in path for child in tree.children(node)]
