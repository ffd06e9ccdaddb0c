"""Fills a tree of a shape fixed beforehand with a draft model's tokens, one batched pass a level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

from hexgraft.host.drafters.base import Limits
from hexgraft.host.drafters.model import DraftModel, ModelDrafter
from hexgraft.host.drafters.shape import DEFAULT_TABLE, AcceptanceTable, Shape, best_shape
from hexgraft.host.tree import ROOT, TokenTree, TreeBuilder

Candidates = list[tuple[int, float]]
"""Tokens and probabilities by rank."""


class Filled(ModelDrafter, ABC):
    """What `static` and `sampled` share: the best shape for a table, filled level by level.

    The shape depends on the limits alone, never on the tokens found: a draw must not decide how many are
    made.
    """

    name: str
    duplicates = False

    def __init__(self, model: DraftModel, table: AcceptanceTable | None = None) -> None:
        super().__init__(model)
        self._table = table or AcceptanceTable(DEFAULT_TABLE)
        self._shape = lru_cache(maxsize=64)(self._best)

    def _best(self, nodes: int, depth: int) -> Shape:
        return best_shape(self._table, nodes, depth)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        builder = TreeBuilder(tokens[-1], duplicates=self.duplicates)
        depth = self._model.room(tokens, limits.depth)
        if depth < 1 or limits.nodes < 2:
            return builder.build()
        shape = self._shape(limits.nodes, depth)
        if not shape.children[ROOT]:
            return builder.build()
        places = [ROOT]
        """Shape node of every tree node."""
        level, shares, mass = [ROOT], [1.0], 1.0
        while level:
            before, mass = mass, sum(shares[node] for node in level)
            if level != [ROOT] and limits.pace is not None:
                # The next level is foreseen to keep as much of this one as this one kept of the last.
                kept = min(1.0, mass / before) if before else 0.0
                level.sort(key=lambda node: (-shares[node], node))
                level = sorted(level[: limits.pace.afford([kept * shares[node] for node in level])])
                if not level:
                    break
            first = len(builder)
            for chunk in self._chunks(level):
                counts = [1 + shape.children[places[node]][-1][0] for node in chunk]
                if chunk == [ROOT]:
                    found = [self._first(builder, tokens, counts[0])]
                else:
                    found = self._more(builder, chunk, counts)
                for node, candidates in zip(chunk, found, strict=True):
                    for rank, place in shape.children[places[node]]:
                        if rank < len(candidates):
                            builder.add(node, *candidates[rank], self.name)
                            places.append(place)
                            shares.append(shares[node] * candidates[rank][1])
            level = [
                node
                for node in range(first, len(builder))
                if shape.children[places[node]] and builder.tokens[node] not in limits.stops
            ]
        return builder.build()

    def _chunks(self, level: list[int]) -> list[list[int]]:
        """A level in passes the draft's widest graph takes, as far as its scratch slots reach."""
        width = self._model.session.spec.max_width
        level = level if level == [ROOT] else level[: self._model.free()]
        return [level[i : i + width] for i in range(0, len(level), width)]

    @abstractmethod
    def _first(self, builder: TreeBuilder, tokens: Sequence[int], count: int) -> Candidates:
        """`count` candidates, or fewer if there are no more, below the root."""

    @abstractmethod
    def _more(self, builder: TreeBuilder, nodes: Sequence[int], counts: Sequence[int]) -> list[Candidates]:
        """The same below each of some nodes, in one pass."""
