"""EAGLE-2's dynamic tree: one batched draft pass a level, then a rerank of every candidate seen."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from hexgraft.host.drafters.base import Limits, Pace
from hexgraft.host.drafters.calibration import Calibration, trials
from hexgraft.host.drafters.model import DraftModel, ModelDrafter
from hexgraft.host.session import TopK
from hexgraft.host.tree import ROOT, TokenTree, TreeBuilder


class Levels(ModelDrafter):
    """Per depth, the `top_k` frontier nodes of highest cumulative probability are expanded in one pass.

    All candidates are kept and the best N-1 form the tree: cumulative probability never grows along a path
    and ties go to the earlier candidate, so the choice is closed under ancestors.
    Source: Li et al., "EAGLE-2", arXiv 2406.16858. It takes the draft's probabilities at their word; with
    `calibrated` they are first corrected by what the target has accepted so far.
    """

    name = "levels"

    def __init__(self, model: DraftModel, *, top_k: int = 8, depth: int = 8, calibrated: bool = True) -> None:
        super().__init__(model)
        self._top_k = top_k
        self._depth = depth
        self._calibration = Calibration() if calibrated else None
        self._candidate: list[int] = [ROOT]

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        """As ever; only a text that goes on (`keep`) keeps what was learned, so that runs repeat."""
        super().begin(tokens, keep)
        if self._calibration and not keep:
            self._calibration = Calibration()

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self._candidate = [ROOT]
        candidates = TreeBuilder(tokens[-1])
        scores = [0.0]
        depth = min(self._depth, self._model.room(tokens, limits.depth))
        if depth < 1 or limits.nodes < 2:
            return candidates.build()
        frontier, mass = [ROOT], 1.0
        found = self._model.start(tokens, self._top_k)
        for level in range(1, depth + 1):
            first = len(candidates)
            self._collect(candidates, scores, frontier, found, _bound(scores, limits))
            if level == depth:
                break
            frontier = self._frontier(candidates, scores, first, limits)
            if not frontier:
                break
            before, mass = mass, sum(math.exp(scores[node]) for node in frontier)
            if limits.pace is not None:
                frontier = _afforded(frontier, scores, min(1.0, mass / before), limits.pace)
                if not frontier:
                    break
            found = self._model.expand(candidates, frontier, self._top_k)
        return self._rerank(candidates, scores, limits.nodes)

    def _collect(
        self, tree: TreeBuilder, scores: list[float], frontier: list[int], found: TopK, bound: float
    ) -> None:
        """Take in the children found, but those at or below `bound`, which the tree has no room for."""
        logs = found.logits - found.log_sum[:, None]
        rows = zip(frontier, found.ids.tolist(), logs.tolist(), np.exp(logs).tolist(), strict=True)
        for parent, ids, values, shares in rows:
            for token, value, share in zip(ids, values, shares, strict=True):
                score = scores[parent] + self._trusted(value)
                if score > bound:
                    tree.add(parent, token, share, self.name)
                    scores.append(score)

    def _trusted(self, log: float) -> float:
        return self._calibration.correct(log) if self._calibration else min(0.0, log)

    def _frontier(self, tree: TreeBuilder, scores: list[float], first: int, limits: Limits) -> list[int]:
        """The best nodes of the newest level that can still bring something into the tree.

        A child never scores above its parent, so a node at or below the worst of the N-1 best candidates is
        done.
        """
        size = min(self._top_k, self._model.session.spec.max_width, self._model.free())
        bound = _bound(scores, limits)
        nodes = [
            n for n in range(first, len(tree)) if tree.tokens[n] not in limits.stops and scores[n] > bound
        ]
        return sorted(heapq.nsmallest(size, nodes, key=lambda n: (-scores[n], n)))

    def _rerank(self, candidates: TreeBuilder, scores: list[float], nodes: int) -> TokenTree:
        best = sorted(heapq.nsmallest(nodes - 1, range(1, len(candidates)), key=lambda n: (-scores[n], n)))
        tree = TreeBuilder(candidates.tokens[ROOT])
        place = {ROOT: ROOT}
        for node in best:
            parent = place[candidates.parents[node]]
            place[node] = tree.add(parent, candidates.tokens[node], candidates.probabilities[node], self.name)
            self._candidate.append(node)
        return tree.build()

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        if self._calibration:
            self._calibration.learn(trials(tree, path))
        self._model.accept([self._candidate[node] for node in path])


def _bound(scores: list[float], limits: Limits) -> float:
    """The worst score of those candidates that fill the tree, minus infinity while they do not."""
    kept = heapq.nlargest(limits.nodes - 1, scores[1:])
    return kept[-1] if len(kept) == limits.nodes - 1 else -math.inf


def _afforded(frontier: list[int], scores: list[float], kept: float, pace: Pace) -> list[int]:
    """The nodes worth a pass, if the next level keeps as much of this one's likelihood as this one has
    `kept` of the last one's."""
    ranked = sorted(frontier, key=lambda node: (-scores[node], node))
    return sorted(ranked[: pace.afford([kept * math.exp(scores[node]) for node in ranked])])
