"""Two drafters in one tree and one target pass, such as a lookup and a draft model."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.drafters.calibration import Calibration
from hexgraft.host.drafters.features import FeatureReader
from hexgraft.host.tree import ROOT, Draws, TokenTree, TreeBuilder, single

_UNKNOWN = 0.5
"""Stands in for the probability of a node whose drafter has none."""
_MOST = 0.75
"""A small tree is enough when this share of what the limits allow is likely to be accepted."""

Pair = tuple[int | None, int | None]
"""A node of the merged tree in the trees of both drafters, None where it is not there."""


class Merge:
    """The nodes likeliest to be accepted out of both trees, a path both propose counted once.

    `cheap` drafts first. If its tree alone promises `enough` accepted tokens (the sum of its nodes'
    cumulative probabilities), as a long match of a lookup does, `dear` is spared for this round. Where both
    propose a node the probability is that of `dear`. Probabilities of two kinds are made comparable by what
    the target accepted of either.
    """

    def __init__(self, cheap: Drafter, dear: Drafter, *, enough: float = 6.0) -> None:
        self.name = f"{cheap.name}+{dear.name}"
        self.draws: Draws | None = Draws.RANKED
        self._drafters = (cheap, dear)
        self._enough = enough
        self._calibrations = (Calibration(), Calibration())
        self._trees: tuple[TokenTree, TokenTree | None] = (single(0), None)
        self._origin: list[Pair] = [(ROOT, ROOT)]

    @property
    def reader(self) -> FeatureReader | None:
        return self._drafters[1].reader or self._drafters[0].reader

    @property
    def passes(self) -> int:
        return sum(drafter.passes for drafter in self._drafters)

    @property
    def rows(self) -> int:
        return sum(drafter.rows for drafter in self._drafters)

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        if not keep:
            self._calibrations = (Calibration(), Calibration())
        for drafter in self._drafters:
            drafter.begin(tokens, keep)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        cheap, dear = self._drafters
        first = cheap.draft(tokens, limits)
        self._trees, self._origin = (first, None), [(ROOT, ROOT)]
        wanted = min(self._enough, _MOST * (limits.nodes - 1), _MOST * limits.depth)
        if len(first) == 1 or self._promise(first) < wanted:
            self._trees = (first, dear.draft(tokens, limits))
        builder = TreeBuilder(tokens[-1])
        self._fill(builder, limits)
        return builder.build()

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Each drafter follows the path as far as its own tree goes; what lies beyond it catches up on."""
        accepted, sent = set(path), [ROOT]
        for node in sent:  # which grows meanwhile
            sent += tree.children(node)
        tried = [child for node in path for child in tree.children(node)]
        for side, (drafter, own) in enumerate(zip(self._drafters, self._trees, strict=True)):
            if own is None:
                continue
            origins = [(self._origin[child][side], child in accepted) for child in tried]
            self._calibrations[side].learn(
                (float(own.probabilities[node]), done) for node, done in origins if node is not None
            )
            known: list[int] = []
            for node in path:
                origin = self._origin[node][side]
                if origin is None:
                    break
                known.append(origin)
            theirs = {self._origin[node][side] for node in sent}
            drafter.accept(own.showing([node for node in theirs if node is not None]), known)

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()

    def _fill(self, builder: TreeBuilder, limits: Limits) -> None:
        heap: list[tuple[float, int, int, int, Pair]] = []
        order = 0

        def push(node: int, key: float) -> None:
            nonlocal order
            for token, pair in self._children(self._origin[node]).items():
                order += 1
                heapq.heappush(heap, (key - self._log(pair), order, node, token, pair))

        push(ROOT, 0.0)
        while heap and len(builder) < limits.nodes:
            key, _, parent, token, pair = heapq.heappop(heap)
            node = builder.add(parent, token, self._probability(pair), self._sources(pair))
            self._origin.append(pair)
            push(node, key)

    def _children(self, pair: Pair) -> dict[int, Pair]:
        """Tokens that follow in either tree; those of `dear` first, as its ranking rests on a model."""
        found: dict[int, list[int | None]] = {}
        for side in (1, 0):
            tree, node = self._trees[side], pair[side]
            if tree is None or node is None:
                continue
            for child in tree.children(node):
                found.setdefault(int(tree.tokens[child]), [None, None])[side] = child
        return {token: (first, second) for token, (first, second) in found.items()}

    def _sources(self, pair: Pair) -> str:
        names = [
            tree.sources[node]
            for tree, node in zip(self._trees, pair, strict=True)
            if tree is not None and node is not None
        ]
        return "+".join(dict.fromkeys(names))

    def _known(self, pair: Pair) -> tuple[int, float]:
        """Whose probability counts, and which; NaN if neither has one."""
        for side in (1, 0):
            tree, node = self._trees[side], pair[side]
            if tree is not None and node is not None and not math.isnan(tree.probabilities[node]):
                return side, float(tree.probabilities[node])
        return 0, math.nan

    def _probability(self, pair: Pair) -> float:
        return self._known(pair)[1]

    def _log(self, pair: Pair) -> float:
        """The log of how likely the node is to be accepted after its parent."""
        side, share = self._known(pair)
        if math.isnan(share):
            return math.log(_UNKNOWN)
        return self._calibrations[side].correct(math.log(share)) if share > 0 else -math.inf

    def _promise(self, tree: TokenTree) -> float:
        """How many nodes of the first tree are likely to be accepted."""
        logs = [0.0]
        for node in range(1, len(tree)):
            logs.append(logs[tree.parents[node]] + self._log((node, None)))
        return sum(math.exp(log) for log in logs[1:])
