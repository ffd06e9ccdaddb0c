"""The top-1 chain: what vLLM and llama.cpp draft. The yardstick every tree has to beat at equal size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hexgraft.host.drafters.base import Limits
from hexgraft.host.drafters.model import ModelDrafter
from hexgraft.host.tree import ROOT, TokenTree, TreeBuilder


class Chain(ModelDrafter):
    """One draft pass a node, always the draft's best token."""

    name = "chain"

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        depth = min(self._model.room(tokens, limits.depth), limits.nodes - 1)
        node, cumulative, probability = ROOT, 1.0, 1.0
        while len(builder) <= depth and (node == ROOT or builder.tokens[node] not in limits.stops):
            # The next token is foreseen to be as sure as the last one was.
            gain = cumulative * probability
            if node != ROOT and limits.pace is not None and not limits.pace.afford([gain]):
                break
            best = self._model.start(tokens, 1) if node == ROOT else self._model.expand(builder, [node], 1)
            probability = float(np.exp(best.logits[0, 0] - best.log_sum[0]))
            cumulative *= probability
            node = builder.add(node, int(best.ids[0, 0]), probability, self.name)
        return builder.build()
