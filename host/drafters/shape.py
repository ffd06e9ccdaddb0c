"""The shape of a static tree: which ranks of children it has where, the best one for measured acceptance."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hexgraft.models.errors import UsageError

DEFAULT_TABLE = (0.55, 0.15, 0.07, 0.04, 0.02)
"""A small draft of the target's own family, greedy. Rough: measure your pair's."""


class AcceptanceTable:
    """How often a child of a rank is the accepted one: one list for all depths, or one a depth.

    The last list serves all deeper levels. Raises UsageError for values outside 0..1.
    """

    def __init__(self, rates: Sequence[float] | Sequence[Sequence[float]]) -> None:
        levels = [list(row) if isinstance(row, Sequence) else [float(row)] for row in rates]
        flat = bool(levels) and not isinstance(rates[0], Sequence)
        self._levels = [[row[0] for row in levels]] if flat else levels
        if not self._levels or not all(self._levels):
            raise UsageError("the acceptance table is empty", "give acceptance by rank, as in 0.6,0.1,0.05")
        for level in self._levels:
            values = np.array(level, np.float64)
            if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
                raise UsageError(
                    f"acceptance by rank {level} is not a list of numbers from 0 to 1",
                    "example: --draft-option table=0.6,0.2,0.1",
                )

    def falling(self) -> AcceptanceTable:
        """The same rates, the largest first at every depth."""
        return AcceptanceTable([sorted(level, reverse=True) for level in self._levels])

    def at(self, depth: int) -> Sequence[float]:
        """Acceptance by rank of the children of a node at `depth`."""
        return self._levels[min(depth, len(self._levels) - 1)]


@dataclass(frozen=True, slots=True)
class Shape:
    """`children` [N]: for every node the (rank, node) of its children, parents before children.

    `expected` is the mean number of tokens a round emits if the table is right, the bonus token counted.
    """

    children: tuple[tuple[tuple[int, int], ...], ...]
    expected: float

    def __len__(self) -> int:
        return len(self.children)


def best_shape(table: AcceptanceTable, nodes: int, depth: int) -> Shape:
    """The tree of at most `nodes` nodes and `depth` levels below the root that accepts most on average.

    Acceptance of a node is the product along its path, which never grows downwards: so the likeliest nodes
    form a tree, and a heap finds them. This reaches the value of the dynamic programme of Chen et al.,
    "Sequoia", arXiv 2402.12374. Ranks of acceptance 0 are left out.
    """
    children: list[list[tuple[int, int]]] = []
    expected = 0.0
    heap: list[tuple[float, int, int, int, int]] = [(-1.0, 0, -1, 0, 0)]
    order = 1
    while heap and len(children) < nodes:
        key, _, parent, rank, level = heapq.heappop(heap)
        node = len(children)
        children.append([])
        expected -= key
        if parent >= 0:
            children[parent].append((rank, node))
        if level >= depth:
            continue
        for below, rate in enumerate(table.at(level)):
            if rate > 0:
                heapq.heappush(heap, (key * rate, order, node, below, level + 1))
                order += 1
    return Shape(tuple(tuple(sorted(c)) for c in children), expected)
