"""Drafters over a model: hand-computed and brute-forced trees, limits, stops, and two in one tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fake_session import FakeModel, FakeSession
from numpy.typing import NDArray
from table_session import TableSession

from hexgraft.host.drafters.base import Drafter, Limits
from hexgraft.host.drafters.best_first import BestFirst, BestFirstKnobs
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.drafters.merge import Merge
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.sampled import Sampled
from hexgraft.host.drafters.static import Static
from hexgraft.host.logits import log_sum_exp, top_tokens
from hexgraft.host.sampling import Sampling
from hexgraft.host.tree import ROOT, Draws, TokenTree, TreeBuilder, single

A, B, C, D, HUB = range(5)
POWERSERVE = np.array(
    [
        # A, B, C, D, hub: the token that follows
        [0.30, 0.30, 0.20, 0.20, 0],
        [0.20, 0.10, 0.00, 0.70, 0],
        [0.40, 0.40, 0.00, 0.20, 0],
        [0.50, 0.45, 0.05, 0.00, 0],
        [0.00, 0.50, 0.30, 0.20, 0],
    ]
)
KNOBS = BestFirstKnobs(top_k=3, temperature=1, p_base=0.5, max_fan_out=2, min_prob=0.2)


def drafted(drafter: Drafter, text: list[int], limits: Limits) -> TokenTree:
    drafter.begin(text)
    return drafter.draft(text, limits)


def best_first(knobs: BestFirstKnobs) -> BestFirst:
    return BestFirst(DraftModel(TableSession(POWERSERVE, shares=True)), knobs)


def test_plain_trees_share_what_nobody_can_write_into() -> None:
    one, other = single(3), single(4)
    assert (one.tokens.tolist(), other.tokens.tolist()) == ([3], [4])
    assert one.parents is other.parents
    for array in (one.parents, one.depths, one.probabilities):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(TypeError):
        one.proposals[0] = None  # type: ignore[index]


def test_best_first_grows_the_tree_computed_by_hand() -> None:
    """Popped in turn: B .5 (expanded), BD .35 (expanded), C .3 (expanded), BDA .175, BDB .1575.

    BDA stays unexpanded twice over: it is below min_prob, and 5 nodes with half of 3 waiting fill the 6.
    """
    drafter = best_first(KNOBS)
    tree = drafted(drafter, [HUB], Limits(6, 9, frozenset()))
    assert tree.tokens.tolist() == [HUB, B, D, C, A, B]
    assert tree.parents.tolist() == [-1, 0, 1, 0, 2, 2]
    assert tree.probabilities.tolist() == pytest.approx([1, 0.5, 0.7, 0.3, 0.5, 0.45])
    assert drafter.passes == 4


def test_best_first_early_stop_spares_passes_and_keeps_the_popped_order() -> None:
    """Without early stop and threshold BDA is expanded as well: 5 passes."""
    knobs = BestFirstKnobs(top_k=3, temperature=1, p_base=0.5, max_fan_out=2, min_prob=0, early_stop=False)
    drafter = best_first(knobs)
    tree = drafted(drafter, [HUB], Limits(6, 9, frozenset()))
    assert tree.tokens.tolist() == [HUB, B, D, C, A, B]
    assert drafter.passes == 5


def test_best_first_side_nodes_join_only_when_nothing_expandable_waits() -> None:
    """min_prob .4 lets B alone expand: D is main, A (.2 < .5 * .7) and rank 2 are side.

    Then D, C; then the side heap by cumulative probability: D .2, BA .1, BB .05. Rank 2 is a side node
    whatever its probability.
    """
    knobs = BestFirstKnobs(top_k=3, temperature=1, p_base=0.5, max_fan_out=2, min_prob=0.4)
    tree = drafted(best_first(knobs), [HUB], Limits(12, 9, frozenset()))
    assert tree.tokens.tolist() == [HUB, B, D, C, D, A, B]
    assert tree.parents.tolist() == [-1, 0, 1, 0, 0, 1, 1]


def test_best_first_ties_go_to_the_node_found_first() -> None:
    table = np.full((4, 4), 0.25)
    knobs = BestFirstKnobs(top_k=4, temperature=1, p_base=0, max_fan_out=4, min_prob=0, early_stop=False)
    drafter = BestFirst(DraftModel(TableSession(table, shares=True)), knobs)
    tree = drafted(drafter, [0], Limits(12, 9, frozenset()))
    assert tree.parents.tolist() == [-1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert tree.tokens[1:].tolist() == [0, 1, 2, 3] * 2 + [0, 1, 2]


def test_best_first_softens_over_the_top_k_alone() -> None:
    knobs = BestFirstKnobs(top_k=2, temperature=1.5, p_base=0, min_prob=1)
    tree = drafted(best_first(knobs), [HUB], Limits(3, 9, frozenset()))
    first = (0.5 / 0.3) ** (1 / 1.5)
    assert tree.probabilities[1:].tolist() == pytest.approx([first / (1 + first), 1 / (1 + first)])


def eagle(
    table: NDArray[np.float32], root: int, top_k: int, depth: int, limits: Limits
) -> tuple[list[int], list[int], int]:
    """EAGLE-2 as published, every frontier expanded: tokens, parents, and levels that were needed at most."""
    tokens, parents, scores, frontier = [root], [-1], [0.0], [ROOT]
    passes = 0
    for level in range(1, depth + 1):
        passes += 1
        first = len(tokens)
        for node in frontier:
            row = table[tokens[node]]
            for token in top_tokens(row, top_k):
                tokens.append(int(token))
                parents.append(node)
                scores.append(scores[node] + min(0.0, float(row[token] - log_sum_exp(row))))
        if level < depth:
            open_nodes = [n for n in range(first, len(tokens)) if tokens[n] not in limits.stops]
            frontier = sorted(sorted(open_nodes, key=lambda n: (-scores[n], n))[:top_k])
        if not frontier:
            break
    kept = sorted(sorted(range(1, len(tokens)), key=lambda n: (-scores[n], n))[: limits.nodes - 1])
    place = {ROOT: ROOT} | {node: i + 1 for i, node in enumerate(kept)}
    return [root] + [tokens[n] for n in kept], [-1] + [place[parents[n]] for n in kept], passes


def test_levels_is_eagle_2_with_fewer_passes() -> None:
    """Against the unpruned algorithm, on tables of few values, so that ties abound."""
    spared = 0
    for case in range(300):
        rng = np.random.default_rng(case)
        table = rng.integers(-3 if case % 2 else -30, 1, (9, 9)).astype(np.float32)
        stops = frozenset(rng.choice(9, 2, replace=False).tolist() if case % 3 == 0 else [])
        limits = Limits(int(rng.integers(2, 24)), int(rng.integers(1, 7)), stops)
        top_k, depth = int(rng.integers(1, 6)), int(rng.integers(1, 7))
        drafter = Levels(DraftModel(TableSession(table)), top_k=top_k, depth=depth)
        tree = drafted(drafter, [0, 3], limits)
        tokens, parents, passes = eagle(table, 3, top_k, min(depth, limits.depth), limits)
        assert tree.tokens.tolist() == tokens
        assert tree.parents.tolist() == parents
        assert drafter.passes <= passes
        spared += passes - drafter.passes
    assert spared > 50


def test_chain_is_the_drafts_own_greedy_text() -> None:
    model = FakeModel()
    drafter = Chain(DraftModel(FakeSession(model)))
    tree = drafted(drafter, [5, 6, 7], Limits(9, 20, frozenset()))
    text, session = [5, 6, 7], FakeSession(model)
    for _ in range(8):
        plain = Chain(DraftModel(session))
        text.append(int(drafted(plain, text, Limits(2, 1, frozenset())).tokens[1]))
    assert tree.tokens.tolist() == text[2:]
    assert tree.parents.tolist() == list(range(-1, 8))
    assert drafter.passes == 8


def all_drafters(capacity: int = 640) -> list[Drafter]:
    def model() -> DraftModel:
        return DraftModel(FakeSession(FakeModel(), capacity=capacity))

    warm = Sampling(temperature=1)
    drafters: list[Drafter] = [
        Chain(model()),
        BestFirst(model(), BestFirstKnobs(p_base=0.2, min_prob=0)),
        Levels(model()),
        Static(model()),
        Sampled(model(), Draws.DISTINCT, warm),
        Sampled(model(), Draws.INDEPENDENT, warm),
        Lookup(),
        Merge(Lookup(), Levels(model())),
        Merge(Chain(model()), Static(model())),
    ]
    return drafters


@pytest.mark.parametrize("place", range(9))
def test_limits_stops_and_context_hold_for_every_drafter(place: int) -> None:
    rng = np.random.default_rng(place)
    drafter = all_drafters(capacity=40)[place]
    for _ in range(40):
        text = rng.integers(0, 6, int(rng.integers(1, 46))).tolist()
        stops = frozenset(rng.choice(48, 12, replace=False).tolist())
        limits = Limits(int(rng.integers(1, 20)), int(rng.integers(1, 9)), stops)
        tree = drafted(drafter, text, limits)
        assert len(tree) <= limits.nodes
        assert tree.depth <= limits.depth
        assert tree.tokens[0] == text[-1]
        inner = [node for node in range(1, len(tree)) if tree.children(node)]
        assert not {int(tree.tokens[node]) for node in inner} & stops
        assert np.array_equal(tree.depths[1:], tree.depths[tree.parents[1:]] + 1)
        assert (tree.parents < np.arange(len(tree))).all()
        if drafter.draws != Draws.INDEPENDENT:
            pairs = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
            assert len(set(pairs)) == len(pairs)
        if not isinstance(drafter, Lookup | Merge) and len(text) > 40:
            assert len(tree) == 1
        drafter.accept(tree, tree.path(int(rng.integers(len(tree)))))


class Fixed:
    """Proposes a tree that was written down."""

    draws: Draws | None = Draws.RANKED
    reader = None

    def __init__(self, name: str, paths: Sequence[tuple[str, float]]) -> None:
        self.name = name
        self.passes = self.rows = 0
        self.followed: list[list[int]] = []
        self._paths = paths

    def begin(self, tokens: Sequence[int], keep: int = 0) -> None: ...

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self.passes += 1
        builder = TreeBuilder(tokens[-1])
        nodes = {"": ROOT}
        for path, probability in self._paths:
            nodes[path] = builder.add(nodes[path[:-1]], ord(path[-1]), probability, self.name)
        return builder.build()

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        self.followed.append(tree.tokens[list(path)].tolist())

    def close(self) -> None: ...


def text_of(tree: TokenTree) -> list[str]:
    return ["".join(map(chr, tree.tokens[tree.path(node)[1:]])) for node in range(1, len(tree))]


def test_merge_unifies_paths_and_keeps_the_models_probability() -> None:
    cheap = Fixed("lookup", [("a", 0.4), ("ab", 0.9), ("x", 0.2), ("xy", 0.5)])
    dear = Fixed("levels", [("a", 0.7), ("c", 0.2), ("ad", 0.6), ("ab", 0.3)])
    merged = Merge(cheap, dear, enough=99)
    merged.begin([1])
    tree = merged.draft([1], Limits(7, 5, frozenset()))
    assert merged.name == "lookup+levels"
    assert text_of(tree) == ["a", "ad", "ab", "c", "x", "xy"]
    assert tree.probabilities[1:].tolist() == pytest.approx([0.7, 0.6, 0.3, 0.2, 0.2, 0.5])
    assert tree.sources[1:] == ("lookup+levels", "levels", "lookup+levels", "levels", "lookup", "lookup")
    small = merged.draft([1], Limits(3, 5, frozenset()))
    assert text_of(small) == ["a", "ad"]


def test_merge_tells_each_drafter_its_own_part_of_the_path() -> None:
    cheap = Fixed("lookup", [("a", 0.4), ("ab", 0.9), ("x", 0.2), ("xy", 0.5)])
    dear = Fixed("levels", [("a", 0.7), ("c", 0.2), ("ad", 0.6)])
    merged = Merge(cheap, dear, enough=99)
    for path, first, second in (
        ("ab", [1, 97, 98], [1, 97]),
        ("ad", [1, 97], [1, 97, 100]),
        ("xy", [1, 120, 121], [1]),
        ("c", [1], [1, 99]),
        ("", [1], [1]),
    ):
        tree = merged.draft([1], Limits(9, 5, frozenset()))
        node = 0 if not path else 1 + text_of(tree).index(path)
        merged.accept(tree, tree.path(node))
        assert cheap.followed[-1] == first
        assert dear.followed[-1] == second


def test_merge_spares_the_model_when_the_lookup_is_sure() -> None:
    sure = Fixed("lookup", [("a", 0.99), ("ab", 0.99), ("abc", 0.99)])
    dear = Fixed("levels", [("z", 0.9)])
    merged = Merge(sure, dear, enough=2.5)
    tree = merged.draft([1], Limits(7, 5, frozenset()))
    assert text_of(tree) == ["a", "ab", "abc"]
    assert dear.passes == 0
    merged.accept(tree, tree.path(3))
    assert dear.followed == []


def test_merge_of_drafters_without_probabilities() -> None:
    unsure = Fixed("old", [("a", float("nan")), ("ab", float("nan"))])
    tree = Merge(unsure, Fixed("none", []), enough=99).draft([1], Limits(7, 5, frozenset()))
    assert text_of(tree) == ["a", "ab"]
    assert np.isnan(tree.probabilities[1:]).all()
