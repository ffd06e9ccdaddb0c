"""Sequoia's static tree: the best shape for measured acceptance, filled with the draft's best tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hexgraft.host.drafters.filled import Candidates, Filled
from hexgraft.host.session import TopK
from hexgraft.host.tree import TreeBuilder


class Static(Filled):
    """The child of rank r is the draft's r-th best token.

    Source: Chen et al., "Sequoia", arXiv 2402.12374.
    """

    name = "static"

    def _first(self, builder: TreeBuilder, tokens: Sequence[int], count: int) -> Candidates:
        return _candidates(self._model.start(tokens, count))[0]

    def _more(self, builder: TreeBuilder, nodes: Sequence[int], counts: Sequence[int]) -> list[Candidates]:
        return _candidates(self._model.expand(builder, nodes, max(counts)))


def _candidates(found: TopK) -> list[Candidates]:
    probabilities = np.exp(found.logits - found.log_sum[:, None])
    return [
        list(zip(ids.tolist(), row.tolist(), strict=True))
        for ids, row in zip(found.ids, probabilities, strict=True)
    ]
