"""PowerServe's drafter: one draft pass at a time, always for the likeliest node not yet in the tree."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hexgraft.host.drafters.base import Limits
from hexgraft.host.drafters.model import DraftModel, ModelDrafter
from hexgraft.host.session import TopK
from hexgraft.host.tree import ROOT, TokenTree, TreeBuilder
from hexgraft.models.errors import UsageError


@dataclass(frozen=True, slots=True)
class BestFirstKnobs:
    """PowerServe's parameters with its defaults, so that its trees can be reproduced.

    `top_k` children are considered after softmax of logits / `temperature` over them alone; those from rank
    `max_fan_out` on, or below `p_base` times the best, may join the tree but are never expanded, nor is a
    node of cumulative probability below `min_prob`. `early_stop` ends expansion once the nodes in the tree
    and half of the expandable ones waiting fill it.
    """

    top_k: int = 15
    temperature: float = 1.5
    p_base: float = 0.9
    max_fan_out: int = 3
    min_prob: float = 0.2
    early_stop: bool = True

    def __post_init__(self) -> None:
        for ok, what, example in (
            (self.top_k >= 1, f"top_k {self.top_k} is not positive", "top_k=15"),
            (self.temperature > 0, f"temperature {self.temperature} is not positive", "temperature=1.5"),
            (self.max_fan_out >= 1, f"max_fan_out {self.max_fan_out} is not positive", "max_fan_out=3"),
            (0 <= self.p_base <= 1, f"p_base {self.p_base} is not in 0..1", "p_base=0.9"),
            (0 <= self.min_prob <= 1, f"min_prob {self.min_prob} is not in 0..1", "min_prob=0.2"),
        ):
            if not ok:
                raise UsageError(f"best-first: {what}", f"example: --draft-option {example}")


@dataclass(order=True, slots=True)
class _Waiting:
    """A node that may join: likeliest first, then in the order it was found."""

    key: float
    order: int
    parent: int
    token: int
    probability: float


@dataclass(slots=True)
class _Heaps:
    """`main` holds nodes that may be expanded, `leaf` those that may only be added."""

    main: list[_Waiting]
    leaf: list[_Waiting]
    found: int = 0


class BestFirst(ModelDrafter):
    """Pops the likeliest node that may be expanded, or, where none waits, that may only be added.

    Source: PowerServe (github.com/powerserve-project/PowerServe, commit 0ec6d64).
    """

    name = "best-first"

    def __init__(self, model: DraftModel, knobs: BestFirstKnobs | None = None) -> None:
        super().__init__(model)
        self._knobs = knobs or BestFirstKnobs()

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        builder = TreeBuilder(tokens[-1])
        depth = self._model.room(tokens, limits.depth)
        if depth < 1 or limits.nodes < 2:
            return builder.build()
        cumulative = [1.0]
        heaps = _Heaps([], [])
        self._push(ROOT, self._model.start(tokens, self._knobs.top_k), cumulative[ROOT], heaps)
        while len(builder) < limits.nodes and (heaps.main or heaps.leaf):
            expandable = bool(heaps.main)
            best = heapq.heappop(heaps.main or heaps.leaf)
            node = builder.add(best.parent, best.token, best.probability, self.name)
            cumulative.append(-best.key)
            # A child is foreseen to be as sure as this node is after its parent.
            gain = cumulative[node] * best.probability
            if (
                expandable
                and self._may_expand(builder, node, cumulative[node], len(heaps.main), depth, limits)
                and (limits.pace is None or limits.pace.afford([gain]))
            ):
                found = self._model.expand(builder, [node], self._knobs.top_k)
                self._push(node, found, cumulative[node], heaps)
        return builder.build()

    def _may_expand(
        self, tree: TreeBuilder, node: int, cumulative: float, waiting: int, depth: int, limits: Limits
    ) -> bool:
        knobs = self._knobs
        full = len(tree) + (waiting // 2 if knobs.early_stop else 0) >= limits.nodes
        return not (
            full
            or cumulative < knobs.min_prob
            or tree.tokens[node] in limits.stops
            or tree.depths[node] >= depth
            or self._model.free() < 1
        )

    def _push(self, parent: int, found: TopK, cumulative: float, heaps: _Heaps) -> None:
        knobs = self._knobs
        probabilities = _softmax(found.logits[0] / knobs.temperature)
        for rank, (token, p) in enumerate(zip(found.ids[0], probabilities, strict=True)):
            side = rank >= knobs.max_fan_out or p < knobs.p_base * probabilities[0]
            item = _Waiting(-cumulative * float(p), heaps.found, parent, int(token), float(p))
            heapq.heappush(heaps.leaf if side else heaps.main, item)
            heaps.found += 1


def _softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares
