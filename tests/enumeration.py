"""Every outcome of a random decision with its probability: each branch of its coins and draws is followed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Branch:
    """A source of randomness that takes the choices of a script, then always the first."""

    def __init__(self, script: list[int]) -> None:
        self.choices: list[int] = []
        self.widths: list[int] = []
        self.probability = 1.0
        self._script = script

    def coin(self, probability: float) -> bool:
        assert 0 <= probability <= 1
        return self._choose([(True, probability), (False, 1 - probability)])

    def draw(self, weights: NDArray[np.float64]) -> int:
        assert (weights >= 0).all()
        shares = (weights / weights.sum()).tolist()
        return self._choose(list(enumerate(shares)))

    def _choose(self, options: list[tuple[T, float]]) -> T:
        options = [option for option in options if option[1] > 0]
        depth = len(self.choices)
        choice = self._script[depth] if depth < len(self._script) else 0
        self.choices.append(choice)
        self.widths.append(len(options))
        self.probability *= options[choice][1]
        return options[choice][0]


def outcomes(decide: Callable[[Branch], T]) -> Iterator[tuple[T, float]]:
    """What `decide` returns on each branch, and the probability of the branch."""
    script: list[int] = []
    while True:
        branch = Branch(script)
        result = decide(branch)
        yield result, branch.probability
        script = branch.choices
        while script and script[-1] + 1 == branch.widths[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1


def law(decide: Callable[[Branch], K]) -> dict[K, float]:
    """The distribution of what `decide` returns."""
    total: dict[K, float] = {}
    for result, probability in outcomes(decide):
        total[result] = total.get(result, 0.0) + probability
    return total
