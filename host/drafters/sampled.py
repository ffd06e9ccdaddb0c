"""Trees whose children are drawn from the draft's distribution, as the residual verifiers need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hexgraft.host.drafters.filled import Candidates, Filled
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.shape import DEFAULT_TABLE, AcceptanceTable
from hexgraft.host.randomness import Keyed, Source, Stream
from hexgraft.host.sampling import Distribution, Sampling
from hexgraft.host.tree import ROOT, Draws, Proposal, TreeBuilder
from hexgraft.models.errors import UsageError


class Sampled(Filled):
    """As many children as the best static shape has, drawn with the options the target samples with.

    Draws are used in order, so ranks are: a table that does not fall from rank to rank is sorted first. The
    nodes of one depth share their random numbers: at most one of them is on the accepted path, and what
    was drawn for positions behind it is drawn anew in the next round, where nothing has looked at it yet.
    """

    name = "sampled"

    def __init__(
        self,
        model: DraftModel,
        draws: Draws,
        sampling: Sampling,
        table: AcceptanceTable | None = None,
        sources: Callable[[int], Source] | None = None,
    ) -> None:
        """`sources` gives the randomness for a position; by default keyed by the seed of `sampling`."""
        super().__init__(model, (table or AcceptanceTable(DEFAULT_TABLE)).falling())
        if draws == Draws.RANKED:
            raise UsageError("sampled children are drawn independent or distinct, not ranked")
        self.draws = draws
        self.duplicates = draws == Draws.INDEPENDENT
        self._sampling = sampling
        self._sources = sources or (lambda position: Keyed(sampling.seed, position, Stream.DRAFT))

    def _first(self, builder: TreeBuilder, tokens: Sequence[int], count: int) -> Candidates:
        return self._draw(builder, ROOT, self._model.start_distribution(tokens, self._sampling), count)

    def _more(self, builder: TreeBuilder, nodes: Sequence[int], counts: Sequence[int]) -> list[Candidates]:
        found = self._model.expand_distributions(builder, nodes, self._sampling)
        return [self._draw(builder, *each) for each in zip(nodes, found, counts, strict=True)]

    def _draw(self, builder: TreeBuilder, node: int, draft: Distribution, count: int) -> Candidates:
        assert self.draws is not None
        proposal = Proposal(self.draws, draft.ids, draft.probabilities())
        builder.propose(node, proposal)
        return draw_children(proposal, count, self._sources(self._model.length + builder.depths[node]))


def draw_children(proposal: Proposal, count: int, source: Source) -> Candidates:
    """Draw `count` children, or as many distinct ones as there are; each with the draft's probability."""
    weights = proposal.probabilities
    drawn: Candidates = []
    while len(drawn) < count and weights.any():
        place = source.draw(weights)
        drawn.append((int(proposal.ids[place]), float(proposal.probabilities[place])))
        if proposal.draws == Draws.DISTINCT:
            weights = np.where(np.arange(len(weights)) == place, 0.0, weights)
    return drawn
