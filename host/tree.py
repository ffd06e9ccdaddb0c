"""A token tree: the tokens a drafter proposes after the pending one, as flat nodes with parents before
children."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

ROOT = 0


class Draws(StrEnum):
    """How a drafter chooses the children of a node, which decides the verifiers that may judge them.

    RANKED is any choice that is not a draw (the k best, a lookup). INDEPENDENT draws may repeat a token;
    DISTINCT draws are without replacement.
    """

    RANKED = "ranked"
    INDEPENDENT = "independent"
    DISTINCT = "distinct"


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft's distribution the children of a node were drawn from, in the order of the children.

    `ids` ascending int64 and `probabilities` float64, both [n]; tokens left out have probability 0.
    """

    draws: Draws
    ids: NDArray[np.int64]
    probabilities: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Nodes 0..N-1; node 0 is the root, the last emitted token, whose K/V the target does not hold yet.

    `tokens` [N] int32, `parents` [N] int32 (-1 for the root, otherwise smaller than the node's own index),
    `depths` [N] int32, `probabilities` [N] float32: the draft's conditional probability of the node after its
    parent (1 for the root, NaN where a drafter has none), `sources`: which drafter proposed the node.
    `proposals`: for nodes whose children were drawn, what from; empty for drafters that do not draw.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    depths: NDArray[np.int32]
    probabilities: NDArray[np.float32]
    sources: tuple[str, ...]
    _children: tuple[tuple[int, ...], ...] = field(repr=False)
    proposals: Mapping[int, Proposal] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        return int(self.depths.max())

    def children(self, node: int) -> tuple[int, ...]:
        """Children in the order they were proposed, best first."""
        return self._children[node]

    def child(self, node: int, token: int) -> int | None:
        """The first child of `node` carrying `token`."""
        return next((c for c in self._children[node] if self.tokens[c] == token), None)

    def path(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        path = [node]
        while path[-1] != ROOT:
            path.append(int(self.parents[path[-1]]))
        return path[::-1]

    def rank(self, node: int) -> int:
        """Place of a node among its siblings, 0 for the first; 0 for the root."""
        return 0 if node == ROOT else self._children[self.parents[node]].index(node)

    def showing(self, kept: Collection[int]) -> TokenTree:
        """The same tree with those children that went to the target: a drafter must not take others for
        refused. `kept` holds every node's parent."""
        if len(kept) == len(self):
            return self
        there = set(kept)
        children = tuple(tuple(child for child in below if child in there) for below in self._children)
        return replace(self, _children=children)

    def ancestors(self) -> NDArray[np.bool_]:
        """[N, N]: row i marks i and every node on its path from the root. This is the tree mask.

        root A, children B C of A, child D of B:

              A B C D
            A x . . .
            B x x . .
            C x . x .
            D x x . x
        """
        count, parents = len(self), self.parents.tolist()
        mask = np.zeros((count, count), np.bool_)
        mask.reshape(-1)[:: count + 1] = True
        for node in range(1, count):
            mask[node] |= mask[parents[node]]
        return mask


class TreeBuilder:
    """Grows a tree node by node. A token occurs once among siblings unless `duplicates` (i.i.d. draws) is
    set."""

    def __init__(self, root: int, *, duplicates: bool = False) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.depths = [0]
        self.probabilities = [1.0]
        self.sources = ["root"]
        self._children: list[list[int]] = [[]]
        self._by_token: dict[tuple[int, int], int] = {}
        self._duplicates = duplicates
        self._proposals: dict[int, Proposal] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, probability: float, source: str) -> int:
        """Append a child and return its index; a sibling that already carries the token is returned
        instead."""
        known = self._by_token.get((parent, token))
        if known is not None and not self._duplicates:
            return known
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.probabilities.append(probability)
        self.sources.append(source)
        self._children[parent].append(node)
        self._children.append([])
        self._by_token.setdefault((parent, token), node)
        return node

    def propose(self, node: int, proposal: Proposal) -> None:
        """Record what the children of `node` are drawn from."""
        self._proposals[node] = proposal

    def path(self, node: int) -> list[int]:
        """The tokens from below the root to `node`."""
        tokens = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def build(self) -> TokenTree:
        return TokenTree(
            np.array(self.tokens, np.int32),
            np.array(self.parents, np.int32),
            np.array(self.depths, np.int32),
            np.array(self.probabilities, np.float32),
            tuple(self.sources),
            tuple(tuple(c) for c in self._children),
            dict(self._proposals),
        )


def _alone() -> TokenTree:
    """A tree of one node whose arrays nobody can write into."""
    tree = TreeBuilder(0).build()
    for array in (tree.tokens, tree.parents, tree.depths, tree.probabilities):
        array.flags.writeable = False
    return replace(tree, proposals=MappingProxyType({}))


_ALONE = _alone()
"""What all trees of one node share but their tokens."""


def single(root: int) -> TokenTree:
    """The tree of plain decoding: the pending token alone."""
    a = _ALONE
    return TokenTree(
        np.array([root], np.int32), a.parents, a.depths, a.probabilities, a.sources, a._children, a.proposals
    )


def chain(root: int, tokens: Sequence[int], source: str) -> TokenTree:
    """A tree that is one path."""
    builder = TreeBuilder(root)
    node = ROOT
    for token in tokens:
        node = builder.add(node, token, float("nan"), source)
    return builder.build()
