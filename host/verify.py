"""Verifiers: which child of a node the target accepts, and which token it emits there. One class a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.drafters.base import Drafter
from hexgraft.host.randomness import Keyed, Source, Stream
from hexgraft.host.sampling import Distribution
from hexgraft.host.tree import Draws, Proposal, TokenTree
from hexgraft.models.errors import DecodeError, UsageError

VERIFIERS = ("match", "specinfer", "sequoia")


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

    def check(self, drafter: Drafter) -> None:
        """Raises UsageError if the rule would be wrong for this drafter's trees."""
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

    def check(self, drafter: Drafter) -> None:
        """Every tree will do."""


class Residual:
    """Accept children by the ratio of target to draft; what is rejected leaves a residual of the target.

    Distributed as plain sampling, yet not the same tokens. The children must have been drawn from the draft's
    distribution, the way `draws` says: with any others the output is biased, and the rule refuses them.
    """

    def __init__(self, name: str, draws: Draws, sources: Callable[[int], Source]) -> None:
        self.name = name
        self.draws = draws
        self._sources = sources

    def judge(self, tree: TokenTree, node: int, target: Distribution, position: int) -> Verdict:
        source = self._sources(position)
        children = tree.children(node)
        weights = target.probabilities()
        if not children:
            return Verdict(int(target.ids[source.draw(weights)]), None)
        proposal = tree.proposals.get(node)
        if proposal is None or proposal.draws != self.draws:
            raise self._refusal(tree.sources[children[0]])
        tokens = [int(tree.tokens[child]) for child in children]
        token, place = accept_or_correct(tokens, proposal, target.ids, weights, source)
        return Verdict(token, None if place is None else children[place])

    def check(self, drafter: Drafter) -> None:
        if drafter.draws not in (None, self.draws):
            raise self._refusal(drafter.name)

    def _refusal(self, drafter: str) -> UsageError:
        return UsageError(
            f"the {self.name} verifier would be biased: it needs {self.draws} draws from a draft model, "
            f"the drafter {drafter} does not make them",
            f"draft with `sampled` ({self.draws}), or verify with `match`, which is exact for every tree",
        )


def specinfer(seed: int) -> Residual:
    """Multi-step rejection sampling over independent draws (Miao et al., "SpecInfer", arXiv 2305.09781)."""
    return Residual("specinfer", Draws.INDEPENDENT, lambda position: Keyed(seed, position, Stream.VERIFY))


def sequoia(seed: int) -> Residual:
    """The same for draws without replacement (Chen et al., "Sequoia", arXiv 2402.12374)."""
    return Residual("sequoia", Draws.DISTINCT, lambda position: Keyed(seed, position, Stream.VERIFY))


def make_verifier(name: str, seed: int) -> Verifier:
    """A verifier by name; raises UsageError for an unknown one."""
    if name == "match":
        return Match(seed)
    if name == "specinfer":
        return specinfer(seed)
    if name == "sequoia":
        return sequoia(seed)
    raise UsageError(f"unknown verifier {name!r}", f"one of: {', '.join(VERIFIERS)}")


def accept_or_correct(
    tokens: Sequence[int],
    proposal: Proposal,
    ids: NDArray[np.int64],
    target: NDArray[np.float64],
    source: Source,
) -> tuple[int, int | None]:
    """The emitted token, and the place of the child among `tokens` if one was accepted.

    Each child c in turn is accepted with probability min(1, p(c) / q(c)); a rejection turns the target p into
    the normalised positive part of p - q. Draws without replacement then also take c out of q. At the end the
    token is drawn from what is left of p. `ids` and `target` are the target's tokens and probabilities [n].
    """
    p, q = target, proposal.probabilities
    shared = np.searchsorted(proposal.ids, ids).clip(max=len(proposal.ids) - 1)
    absent = proposal.ids[shared] != ids
    for place, token in enumerate(tokens):
        at = min(int(np.searchsorted(proposal.ids, token)), len(q) - 1)
        if proposal.ids[at] != token or q[at] == 0:
            raise DecodeError(f"token {token} was proposed by a draft that gives it probability 0")
        where = np.flatnonzero(ids == token)
        wanted = float(p[where[0]]) if len(where) else 0.0
        if source.coin(min(1.0, wanted / float(q[at]))):
            return token, place
        residual = np.maximum(p - np.where(absent, 0.0, q[shared]), 0.0)
        if residual.sum() > 0:
            p = residual / residual.sum()
        if proposal.draws == Draws.DISTINCT:
            q = q.copy()
            q[at] = 0.0
            q /= q.sum() or 1.0
    return int(ids[source.draw(p)]), None
