"""Two drafters in one tree and one target pass, such as a lookup and a draft model."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.tree import ROOT, Draws, TokenTree, TreeBuilder, single

_UNKNOWN = 0.5
"""Stands in for the probability of a node whose drafter has none."""
_MOST = 0.75
"""A small tree is enough when this share of what the limits allow is likely to be accepted."""


class Merge:
    """The nodes likeliest to be accepted out of both trees, a path both propose counted once.

    `cheap` drafts first. If its tree alone promises `enough` accepted tokens (the sum of its nodes'
    cumulative probabilities), as a long match of a lookup does, `dear` is spared for this round. Where both
    propose a node the probability is that of `dear`.
    """

    def __init__(self, cheap: Drafter, dear: Drafter, *, enough: float = 6.0) -> None:
        self.name = f"{cheap.name}+{dear.name}"
        self.draws: Draws | None = Draws.RANKED
        self._drafters = (cheap, dear)
        self._enough = enough
        self._trees: tuple[TokenTree, TokenTree | None] = (single(0), None)
        self._origin: list[tuple[int | None, int | None]] = [(ROOT, ROOT)]

    @property
    def passes(self) -> int:
        return sum(drafter.passes for drafter in self._drafters)

    @property
    def rows(self) -> int:
        return sum(drafter.rows for drafter in self._drafters)

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        for drafter in self._drafters:
            drafter.begin(tokens, keep)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        cheap, dear = self._drafters
        first = cheap.draft(tokens, limits)
        spare = _promise(first) >= min(self._enough, _MOST * (limits.nodes - 1), _MOST * limits.depth)
        second = None if spare and len(first) > 1 else dear.draft(tokens, limits)
        self._trees = (first, second)
        builder = TreeBuilder(tokens[-1])
        self._origin = [(ROOT, ROOT)]
        self._fill(builder, limits)
        return builder.build()

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Each drafter follows the path as far as its own tree goes; what lies beyond it catches up on."""
        for side, (drafter, own) in enumerate(zip(self._drafters, self._trees, strict=True)):
            if own is None:
                continue
            known: list[int] = []
            for node in path:
                origin = self._origin[node][side]
                if origin is None:
                    break
                known.append(origin)
            drafter.accept(own, known)

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()

    def _fill(self, builder: TreeBuilder, limits: Limits) -> None:
        heap: list[tuple[float, int, int, int, tuple[int | None, int | None]]] = []
        order = 0

        def push(node: int, cumulative: float) -> None:
            nonlocal order
            for token, pair in self._children(self._origin[node]).items():
                order += 1
                heapq.heappush(heap, (-cumulative * self._probability(pair), order, node, token, pair))

        push(ROOT, 1.0)
        while heap and len(builder) < limits.nodes:
            key, _, parent, token, pair = heapq.heappop(heap)
            names = [
                tree.sources[own]
                for tree, own in zip(self._trees, pair, strict=True)
                if tree and own is not None
            ]
            node = builder.add(parent, token, self._recorded(pair), "+".join(dict.fromkeys(names)))
            self._origin.append(pair)
            push(node, -key)

    def _children(self, pair: tuple[int | None, int | None]) -> dict[int, tuple[int | None, int | None]]:
        """Tokens that follow in either tree; those of `dear` first, as its ranking rests on a model."""
        found: dict[int, list[int | None]] = {}
        for side in (1, 0):
            tree, node = self._trees[side], pair[side]
            if tree is None or node is None:
                continue
            for child in tree.children(node):
                found.setdefault(int(tree.tokens[child]), [None, None])[side] = child
        return {token: (first, second) for token, (first, second) in found.items()}

    def _recorded(self, pair: tuple[int | None, int | None]) -> float:
        for side in (1, 0):
            tree, node = self._trees[side], pair[side]
            if tree is not None and node is not None and not np.isnan(tree.probabilities[node]):
                return float(tree.probabilities[node])
        return float("nan")

    def _probability(self, pair: tuple[int | None, int | None]) -> float:
        value = self._recorded(pair)
        return _UNKNOWN if np.isnan(value) else value


def _promise(tree: TokenTree) -> float:
    """How many nodes of a tree will be accepted if its probabilities are right."""
    own = np.nan_to_num(tree.probabilities.astype(np.float64), nan=_UNKNOWN)
    cumulative = np.ones(len(tree))
    for node in range(1, len(tree)):
        cumulative[node] = cumulative[tree.parents[node]] * own[node]
    return float(cumulative[1:].sum())
