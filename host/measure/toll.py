"""What the host takes for trees, out of the rounds of a trial."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from hexgraft.host.drafters.adaptive import LOOKED, PASSED
from hexgraft.host.drafters.ledger import Toll
from hexgraft.host.measure.trial import Part, steady


def fit_toll(parts: Sequence[Part], drafted: Sequence[Sequence[int]], known: Toll, beyond: float) -> Toll:
    """The toll by which the rounds of `parts` took what they did, where `drafted` is what `Adaptive` says of
    each. A tree takes `beyond` seconds more than it did in these rounds; where nothing was asked for at all,
    that still takes what is `known`. A look that was never made is taken to cost what asking does, and a
    round without one, where there was none, what a look does.
    """
    passed: list[float] = []
    rows: list[tuple[float, ...]] = []
    for part, sizes in zip(parts, drafted, strict=True):
        after = False
        for (spent, tokens), size in zip(part.each, sizes, strict=True):
            if size == PASSED:
                passed.append(spent)
                continue
            rows.append((spent, size == LOOKED, size > 0, size > 1, max(0, size - 1), tokens - 1, after))
            after = size > 1  # what there is to learn of a tree is learned in the next look
    seconds, columns = np.split(np.array(rows or [(0.0,) * 7], np.float64), [1], axis=1)
    looks, asks, trees, nodes = columns.T[:4]
    asked, looked = bool(asks.any()), bool(looks.any())
    if (asks == trees).all():
        trees[:] = 0  # where there always is a tree, asking takes all of it
    if len(set(nodes[nodes > 0])) == 1:
        nodes[:] = 0  # where all trees are alike, nobody can tell what a node takes
    looking, asking, tree, node, token, lesson = _steadily(columns, seconds[:, 0])
    tree += lesson + beyond
    asking = max(0.0, asking + min(0.0, tree)) if asked else known.asking
    looking = looking if looked else asking
    passing = steady(passed) / len(passed) if passed else looking
    if not asked:
        return msgspec.structs.replace(known, passing=passing, looking=looking)
    return Toll(passing, looking, asking, max(0.0, tree), node, token)


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
