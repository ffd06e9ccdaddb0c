"""Shapes of static trees: the heap against Sequoia's dynamic programme, and the drafter that fills them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from fake_session import FakeModel, FakeSession
from table_session import TableSession

from hexgraft.host.drafters.base import Limits
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.shape import DEFAULT_TABLE, AcceptanceTable, Shape, best_shape
from hexgraft.host.drafters.static import Static
from hexgraft.host.session import causal
from hexgraft.models.errors import UsageError


def dynamic_programme(levels: Sequence[Sequence[float]], nodes: int, depth: int) -> float:
    """The most tokens a round emits on average with a tree of exactly or at most `nodes` nodes."""

    @cache
    def tree(size: int, at: int) -> float:
        """A subtree of up to `size` nodes whose root stands at depth `at`, the root itself counted."""
        return 1 + (below(size - 1, at, 0) if at < depth else 0.0)

    @cache
    def below(size: int, at: int, rank: int) -> float:
        rates = levels[min(at, len(levels) - 1)]
        if size == 0 or rank == len(rates):
            return 0.0
        given = (
            rates[rank] * tree(own, at + 1) + below(size - own, at, rank + 1) for own in range(1, size + 1)
        )
        return max(below(size, at, rank + 1), max(given))

    return tree(nodes, 0)


def check(shape: Shape, nodes: int, depth: int) -> None:
    """A tree: every node but the root once, parents first, ranks distinct, no deeper than allowed."""
    assert len(shape) <= nodes
    depths = {0: 0}
    for node, children in enumerate(shape.children):
        assert len({rank for rank, _ in children}) == len(children)
        for _, child in children:
            assert child > node
            assert child not in depths
            depths[child] = depths[node] + 1
    assert sorted(depths) == list(range(len(shape)))
    assert max(depths.values()) <= depth


@pytest.mark.parametrize("case", range(12))
def test_the_heap_reaches_the_value_of_the_dynamic_programme(case: int) -> None:
    rng = np.random.default_rng(case)
    ranks, levels = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    table = rng.dirichlet(np.ones(ranks + 1), size=levels)[:, :ranks]
    if case % 3:
        table = -np.sort(-table, axis=1)
    table[rng.random(table.shape) < 0.1] = 0
    rates = table.tolist() if levels > 1 else table[0].tolist()
    for nodes in (1, 2, 3, 5, 8, 13, 32):
        for depth in (1, 2, 4, 32):
            shape = best_shape(AcceptanceTable(rates), nodes, depth)
            check(shape, nodes, depth)
            assert shape.expected == pytest.approx(dynamic_programme(table.tolist(), nodes, depth), abs=1e-9)


def test_known_values() -> None:
    """tau for the default table at 2, 4, 8, 16 and 32 nodes."""
    sizes = (2, 4, 8, 16, 32)
    values = [best_shape(AcceptanceTable(DEFAULT_TABLE), nodes, 99).expected for nodes in sizes]
    assert values == pytest.approx([1.55, 2.02, 2.43, 2.80, 3.13], abs=0.005)


def test_tables_are_checked() -> None:
    for rates in ([], [[]], [1.2], [-0.1], [[0.5], [float("nan")]]):
        with pytest.raises(UsageError):
            AcceptanceTable(rates)
    assert AcceptanceTable([0.1, 0.5]).falling().at(3) == [0.5, 0.1]


def test_the_shape_is_filled_by_rank_with_one_pass_a_level() -> None:
    model = FakeModel()
    drafter = Static(DraftModel(FakeSession(model)), AcceptanceTable([[0.5, 0.3, 0.1], [0.6, 0.2]]))
    text = [3, 1, 4, 1, 5]
    drafter.begin(text)
    tree = drafter.draft(text, Limits(14, 4, frozenset()))
    assert len(tree) == 14
    assert drafter.passes == tree.depth <= 4
    plain = FakeSession(model)
    for node in range(len(tree)):
        path = [*text[:-1], *tree.tokens[tree.path(node)].tolist()]
        best = plain.forward(path, range(len(path)), causal(0, len(path))).topk(3, [len(path) - 1])
        for rank, child in enumerate(tree.children(node)):
            assert tree.tokens[child] == best.ids[0, rank]
            share = np.exp(best.logits[0, rank] - best.log_sum[0])
            assert tree.probabilities[child] == pytest.approx(share, rel=1e-4)


def test_passes_are_split_at_the_width_of_the_draft() -> None:
    narrow = FakeSession(FakeModel(), max_width=2)
    wide = Static(DraftModel(FakeSession(FakeModel())), AcceptanceTable([0.4, 0.3, 0.2]))
    split = Static(DraftModel(narrow), AcceptanceTable([0.4, 0.3, 0.2]))
    for drafter in (wide, split):
        drafter.begin([1, 2])
    one, other = (d.draft([1, 2], Limits(13, 3, frozenset())) for d in (wide, split))
    assert np.array_equal(one.tokens, other.tokens)
    assert split.passes > wide.passes


def test_stops_and_small_vocabularies_leave_places_empty() -> None:
    table = np.log(np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.2, 0.2, 0.6]]))
    drafter = Static(DraftModel(TableSession(table)), AcceptanceTable([0.3, 0.25, 0.2, 0.1]))
    drafter.begin([0])
    tree = drafter.draft([0], Limits(21, 2, frozenset({1})))
    assert tree.tokens[list(tree.children(0))].tolist() == [1, 2, 0]
    assert tree.children(tree.child(0, 1) or 0) == ()
    assert len(tree) == 1 + 3 + 3 + 3
