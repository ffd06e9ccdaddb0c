"""Verifiers: which child of a node the target accepts, and which token it emits there. One class a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hexgraft.host.sampling import Distribution
from hexgraft.host.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """The token emitted after a node; `child` is the accepted child that carries it, None if there is
    none."""

    token: int
    child: int | None


class Verifier(Protocol):
    """Judges one node at a time; the walk calls it from the root along the accepted path."""

    name: str

    def judge(self, tree: TokenTree, node: int, target: Distribution, position: int) -> Verdict:
        """`target` is the target's distribution after `node`, `position` that of the token to be emitted."""
        ...


class Match:
    """Draw the target's own token; go on if a child carries it.

    The emitted token is a draw from the target whatever the tree is, and its randomness depends on (seed,
    position) only: output equals plain decoding token for token, at every temperature.
    """

    name = "match"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def judge(self, tree: TokenTree, node: int, target: Distribution, position: int) -> Verdict:
        token = target.draw(self._seed, position)
        return Verdict(token, tree.child(node, token))
