"""Drafts without a model: what followed the last times this text or a corpus read as its end does now."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hexgraft.host.drafters.base import Limits
from hexgraft.host.drafters.calibration import Calibration, trials
from hexgraft.host.drafters.features import FeatureReader
from hexgraft.host.drafters.suffix_index import SuffixIndex
from hexgraft.host.tree import ROOT, Draws, TokenTree, TreeBuilder, single
from hexgraft.models.errors import UsageError

_RECENCY = 0.95
_STRONGEST = 16


@dataclass(frozen=True, slots=True)
class LookupKnobs:
    """`min_match` tokens at the end of the text must recur before anything is drafted.

    Matches count up to `max_match` tokens. `occurrences` is how many earlier places are weighed. A node below
    `min_prob` cumulative probability is left out.
    """

    min_match: int = 2
    max_match: int = 64
    occurrences: int = 16
    min_prob: float = 0.0

    def __post_init__(self) -> None:
        for ok, what, example in (
            (self.min_match >= 1, f"min_match {self.min_match} is not positive", "min_match=2"),
            (
                self.max_match >= self.min_match,
                f"max_match {self.max_match} is less than min_match {self.min_match}",
                f"max_match={max(64, self.min_match)}",
            ),
            (self.occurrences >= 1, f"occurrences {self.occurrences} is not positive", "occurrences=16"),
            (0 <= self.min_prob <= 1, f"min_prob {self.min_prob} is not in 0..1", "min_prob=0.1"),
        ):
            if not ok:
                raise UsageError(f"lookup: {what}", f"example: --draft-option {example}")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads on from an earlier place: the tokens `ahead` of it, how many before it match, what it weighs."""

    ahead: list[int]
    length: int
    weight: float


@dataclass(frozen=True, slots=True)
class _Group:
    """Readers that have read the same tokens so far, their whole weight, and the longest match among them."""

    readers: list[_Reader]
    weight: float
    length: int

    @classmethod
    def of(cls, readers: list[_Reader]) -> _Group:
        return cls(readers, sum(reader.weight for reader in readers), max(r.length for r in readers))


class Lookup:
    """Continuations of the longest matching suffixes form a tree, filled best first.

    A place that shares one token more weighs four times as much; newer places weigh more than older ones. A
    node's probability is its share of the weight at its parent, times e / (e + 1), where e counts the tokens
    matched and the places that agree. These are estimates, as no model is asked; what fills the tree is their
    correction by what the target has accepted. Sources of the idea: Saxena,
    "Prompt lookup decoding" (2023), and Oliaro et al., "SuffixDecoding", arXiv 2411.04975.
    """

    name = "lookup"
    draws: Draws | None = Draws.RANKED
    reader: FeatureReader | None = None
    passes = 0
    rows = 0

    def __init__(self, corpus: Sequence[Sequence[int]] = (), knobs: LookupKnobs | None = None) -> None:
        self._knobs = knobs or LookupKnobs()
        self._corpus = SuffixIndex(sum(map(len, corpus)), self._knobs.min_match)
        for sequence in corpus:
            self._corpus.extend(sequence)
            self._corpus.end_sequence()
        self._text = SuffixIndex(0, self._knobs.min_match)
        self._calibration = Calibration()
        self.matched = 0
        """Tokens at the end of the text that recurred when the last tree was drafted, 0 for none."""

    @property
    def nbytes(self) -> int:
        """Memory of both indexes."""
        return self._corpus.nbytes + self._text.nbytes

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None:
        if not keep:
            self._calibration = Calibration()
        self._text = SuffixIndex(max(1 << 14, 2 * len(tokens)), self._knobs.min_match)
        self._text.extend(tokens)

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self._text.extend(tokens[len(self._text) :])
        depth = min(limits.depth, limits.nodes - 1)
        readers = self._find(tokens, depth) if depth > 0 else []
        self.matched = max((reader.length for reader in readers), default=0)
        if not readers:
            return single(tokens[-1])
        builder = TreeBuilder(tokens[-1])
        self._fill(builder, readers, limits)
        return builder.build()

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Nothing to follow, as the next `draft` reads the new tokens; but something to learn."""
        self._calibration.learn(trials(tree, path))

    def close(self) -> None: ...

    def _find(self, tokens: Sequence[int], depth: int) -> list[_Reader]:
        """Readers of up to `depth` tokens. Past the text's end they repeat, like an LZ77 copy; a corpus
        ends."""
        knobs = self._knobs
        end = tokens[-knobs.max_match :]
        readers: list[_Reader] = []
        for index, repeats in ((self._text, True), (self._corpus, False)):
            for place in index.find(end, knobs.occurrences, knobs.max_match):
                weight = 4.0 ** min(place.length, _STRONGEST) * _RECENCY ** len(readers)
                ahead = index.following(place.following, depth)
                while repeats and len(ahead) < depth:
                    ahead += ahead[: depth - len(ahead)]
                readers.append(_Reader(ahead, place.length, weight))
        return readers

    def _fill(self, builder: TreeBuilder, readers: list[_Reader], limits: Limits) -> None:
        order = 0
        least = -math.log(self._knobs.min_prob) if self._knobs.min_prob else math.inf
        heap: list[tuple[float, int, int, int, float, _Group]] = []

        def push(parent: int, key: float, group: _Group) -> None:
            nonlocal order
            for token, share, part in _children(group, builder.depths[parent]):
                order += 1
                score = key - self._calibration.correct(math.log(share))
                heapq.heappush(heap, (score, order, parent, token, share, part))

        push(ROOT, 0.0, _Group.of(readers))
        while heap and len(builder) < limits.nodes:
            key, _, parent, token, share, group = heapq.heappop(heap)
            if key > least:
                break
            node = builder.add(parent, token, share, self.name)
            if builder.depths[node] < limits.depth and token not in limits.stops:
                push(node, key, group)


def _children(group: _Group, depth: int) -> list[tuple[int, float, _Group]]:
    """What follows after `depth` drafted tokens, the likeliest first: token, probability, its readers."""
    parts: dict[int, list[_Reader]] = {}
    for reader in group.readers:
        if depth < len(reader.ahead):
            parts.setdefault(reader.ahead[depth], []).append(reader)
    evidence = group.length + depth + len(group.readers) - 1
    trust = evidence / (evidence + 1) / group.weight
    shares = []
    for token, readers in parts.items():
        # Mostly all go on alike, and nothing need be summed again.
        part = group if len(readers) == len(group.readers) else _Group.of(readers)
        shares.append((token, trust * part.weight, part))
    return sorted(shares, key=lambda child: (-child[1], child[0])) if len(shares) > 1 else shares
