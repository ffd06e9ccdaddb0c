"""What the host takes for trees, out of the rounds of a trial."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hexgraft.host.drafters.adaptive import PASSED
from hexgraft.host.drafters.ledger import Toll
from hexgraft.host.measure.trial import Part, steady


def fit_toll(parts: Sequence[Part], drafted: Sequence[Sequence[int]], known: Toll, beyond: float) -> Toll:
    """The toll by which the rounds of `parts` took what they did, where `drafted` is what `Adaptive` says of
    each. Asking takes `beyond` seconds more than it did in these rounds; where nothing was asked for at all,
    that still takes what is `known`.
    """
    passed: list[float] = []
    rows: list[tuple[float, ...]] = []
    for part, sizes in zip(parts, drafted, strict=True):
        learning = False
        for (seconds, tokens), nodes in zip(part.each, sizes, strict=True):
            if nodes == PASSED:
                passed.append(seconds)
                continue
            asked, tree = nodes > 0, nodes > 1
            rows.append((seconds, not asked, asked, tree, max(0, nodes - 1), tokens - 1, learning))
            learning = tree  # what there is to learn of a tree is learned in the next look
    passing = steady(passed) / len(passed) if passed else 0.0
    if not rows:
        return msgspec.structs.replace(known, passing=passing)
    table = np.array(rows, np.float64)
    if (table[:, 2] == table[:, 3]).all():
        table[:, 3] = 0  # where every tree has nodes nobody can tell: asking takes all of it
    looking, asking, first, node, token, lesson = _steadily(table[:, 1:], table[:, 0])
    if not table[:, 2].any():
        return msgspec.structs.replace(known, passing=passing, looking=looking)
    return Toll(passing, looking, max(0.0, asking + beyond), first + lesson, node, token)


def _steadily(matrix: NDArray[np.float64], values: NDArray[np.float64]) -> list[float]:
    """What the columns add to `values`, without the twentieth that is furthest above what they say."""
    beyond = values - matrix @ _not_negative(matrix, values)
    kept = np.sort(np.argsort(beyond, kind="stable")[: max(1, len(values) - len(values) // 20)])
    found: list[float] = _not_negative(matrix[kept], values[kept]).tolist()
    return found


def _not_negative(matrix: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares; a column that would take away from the sum adds nothing."""
    used = list(range(matrix.shape[1]))
    found = np.zeros(matrix.shape[1])
    while used:
        weights = np.linalg.lstsq(matrix[:, used], values, rcond=None)[0]
        if weights.min() >= 0:
            found[used] = weights
            break
        used.pop(int(weights.argmin()))
    return found
