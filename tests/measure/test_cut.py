"""How a tree is cut, shown and paid for, on a drafter that proposes the same tree every time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from shapes import shaped_profile

from hexgraft.host.drafters.adaptive import Adaptive
from hexgraft.host.drafters.base import Limits, NoDraft
from hexgraft.host.drafters.ledger import BOUND, HORIZON
from hexgraft.host.drafters.merge import Merge
from hexgraft.host.logits import NotFinite
from hexgraft.host.measure.costs import Costs
from hexgraft.host.tree import Draws, TokenTree, TreeBuilder, single

SIZES = [4, 8, 16, 32]
LIMITS = Limits(32, 20, frozenset())
PLAIN = Limits(1, 0, frozenset())


class Same(NoDraft):
    """A chain of likely tokens 1, 2, 3, ... with an unlikely sibling 100 + n beside each."""

    name = "same"
    draws: Draws | None = Draws.RANKED

    def __init__(self, likely: float, unlikely: float) -> None:
        self.shares = (likely, unlikely)
        self.asked: list[Limits] = []
        self.shown: list[tuple[TokenTree, list[int]]] = []

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self.asked.append(limits)
        builder = TreeBuilder(tokens[-1])
        node = 0
        for level in range(1, 11):
            below = builder.add(node, level, self.shares[0], self.name)
            builder.add(node, 100 + level, self.shares[1], self.name)
            node = below
        return builder.build()

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        self.shown.append((tree, list(path)))


def begun(drafter: Same, shape: str, foreseen: float = 2.0) -> Adaptive:
    """After enough plain rounds that something may be lost."""
    adaptive = Adaptive(drafter, Costs.of(shaped_profile(shape)), SIZES, 16, foreseen=foreseen)
    adaptive.begin([7, 7])
    for _ in range(100):
        adaptive.accept(adaptive.draft([7, 7], PLAIN), [0])
    return adaptive


class Counted(Same):
    """A tree of `nodes` likely tokens and no more, for a draft pass over as many rows as `rows` says, one
    after the other."""

    def __init__(self, rows: Sequence[int], nodes: int = 2) -> None:
        super().__init__(0.9, 0.0)
        self.rows_read, self.nodes = list(rows), nodes
        self.meter = Meter()

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self.asked.append(limits)
        if count := self.rows_read.pop(0):
            self.meter.passes[count, len(tokens) - 1] = 1
        builder = TreeBuilder(tokens[-1])
        for node in range(self.nodes - 1):
            builder.add(node, 1, 0.9, self.name)
        return builder.build()


class Meter:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.passes: dict[tuple[int, int], int] = {}

    def clear(self) -> None:
        self.passes.clear()


def counted(drafter: Counted, prompt: int, rounds: int) -> Adaptive:
    """After so many rounds on a text, each of which accepted the drafted token."""
    costs = Costs.of(shaped_profile("flat"))
    adaptive = Adaptive(drafter, costs, SIZES, 16, foreseen=2.0, meter=drafter.meter)
    tokens = [7] * prompt
    adaptive.begin(tokens)
    for _ in range(rounds):
        tree = adaptive.draft(tokens, LIMITS)
        adaptive.accept(tree, range(len(tree)))
        tokens = tokens + [1] * len(tree)
    return adaptive


@pytest.mark.parametrize("nodes", [2, 8])
def test_a_tree_that_its_drafter_kept_small_says_nothing_of_sizes(nodes: int) -> None:
    """As where a lookup found nothing and the draft model adds one token: the next match may be long."""
    drafter = Counted([1, *[nodes] * 9], nodes)
    counted(drafter, 8, 10)
    assert [limits.nodes for limits in drafter.asked] == [16] * 10


def test_what_a_head_has_left_of_a_prompt_is_no_cost_of_trees() -> None:
    """Its first pass reads the last tokens of the prompt, as the target's prefill did."""
    plain, behind = Counted([1, *[2] * 5]), Counted([30, *[2] * 5])
    assert counted(plain, 31, 6).slowdown == pytest.approx(counted(behind, 31, 6).slowdown)
    # A drafter that was spared for a round reads more the next time, and that is a cost.
    spared, read = Counted([1, 0, 4, 2]), Counted([1, 2, 2, 2])
    costs = Costs.of(shaped_profile("flat"))
    last = [counted(drafter, 31, 4)._ledger.paid for drafter in (spared, read)]
    saved = 2 * costs.pass_of_draft(2, 40) - costs.pass_of_draft(4, 40)
    assert last[1] - last[0] == pytest.approx(saved, rel=0.02)


def test_a_draft_pass_that_takes_more_than_may_be_lost_is_not_made() -> None:
    """The root at least has to be read, at a little more than so short a text may lose."""
    drafter = Counted([1])
    dear = Costs.of(shaped_profile("flat", draft=1.01 * BOUND * HORIZON))
    adaptive = Adaptive(drafter, dear, SIZES, 16, foreseen=2.0, meter=drafter.meter)
    adaptive.begin([7] * 8)
    assert len(adaptive.draft([7] * 8, LIMITS)) == 1
    assert drafter.asked == []


def test_trees_are_cut_to_what_pays() -> None:
    flat = begun(Same(0.8, 0.1), "flat").draft([7, 7], LIMITS)
    steep = begun(Same(0.8, 0.1), "steep").draft([7, 7], LIMITS)
    assert len(flat) > len(steep) > 1
    assert steep.tokens.tolist() == [7, *range(1, len(steep))]
    assert len(begun(Same(0.05, 0.05), "steep").draft([7, 7], LIMITS)) == 1
    for tree in (flat, steep):
        assert all(tree.parents[node] < node for node in range(1, len(tree)))


def test_padding_is_filled_with_what_is_free() -> None:
    """A pass of five rows costs what one of eight does, so three more nodes cost nothing."""
    tree = begun(Same(0.9, 0.05), "flat").draft([7, 7], LIMITS)
    assert len(tree) in SIZES or len(tree) == 21


def test_a_drafter_is_not_told_of_refusals_that_were_none() -> None:
    same = Same(0.8, 0.1)
    adaptive = begun(same, "steep")
    tree = adaptive.draft([7, 7], LIMITS)
    path = list(range(len(tree)))
    adaptive.accept(tree, path)
    shown, accepted = same.shown[0]
    assert len(shown) == 21
    assert [int(shown.tokens[node]) for node in accepted] == [7, *range(1, len(path))]
    assert shown.children(accepted[-1]) == ()
    assert all(int(shown.tokens[child]) < 100 for node in accepted for child in shown.children(node))


def test_merged_drafters_are_not_told_of_refusals_that_were_none() -> None:
    """The merged tree has room for three tokens of either drafter's twenty."""
    cheap, dear = Same(0.4, 0.1), Same(0.9, 0.05)
    merge = Merge(cheap, dear)
    merge.begin([7, 7])
    tree = merge.draft([7, 7], Limits(4, 20, frozenset()))
    assert tree.tokens.tolist() == [7, 1, 2, 3]
    merge.accept(tree, [0, 1])
    merge.accept(single(7), [0])
    for drafter in (cheap, dear):
        (shown, path), (alone, _) = drafter.shown
        refused = [int(shown.tokens[c]) for n in path for c in shown.children(n) if c not in path]
        assert refused == [2]
        assert alone.children(0) == ()
    tree = merge.draft([7, 7], Limits(4, 20, frozenset()))
    merge.accept(tree.showing([0, 1]), [0, 1])
    for drafter in (cheap, dear):
        shown, path = drafter.shown[-1]
        assert [shown.children(node) for node in path[1:]] == [()], "the others were cut"


def test_plain_rounds_are_not_told_to_the_drafter() -> None:
    same = Same(0.8, 0.1)
    adaptive = begun(same, "steep")
    tree = adaptive.draft([7, 7], PLAIN)
    adaptive.accept(tree, [0])
    assert (len(tree), same.asked, same.shown) == (1, [], [])
    assert adaptive.slowdown == 1.0


def test_trees_whose_logits_are_not_finite_are_paid_for() -> None:
    """The target has no number for any row of a tree, so that every tree costs a pass and a plain one."""
    same = Same(0.8, 0.1)
    adaptive, costs, text = begun(same, "flat"), Costs.of(shaped_profile("flat")), [7, 7]
    paid = plain = 100 * (costs.plain(1) + costs.plain(100)) / 2
    for _ in range(200):
        tree, fill = adaptive.draft(text, LIMITS), len(text) - 1
        paid += costs.plain(fill) + (costs.verify(len(tree), fill) if len(tree) > 1 else 0.0)
        plain += costs.plain(fill)
        adaptive.accept(single(text[-1]), [0])
        text.append(1)
        # Such a pass cannot be foreseen, so the bound may be passed by one.
        assert paid <= (1 + BOUND) * plain + costs.verify(32, fill)
    assert len(same.asked) > 1
    assert adaptive.slowdown == pytest.approx(paid / plain)
    assert all(len(shown) == 1 for shown, _ in same.shown), "nothing was refused"


class NotANumber(Same):
    """A draft model that makes a pass, and has no number for any row; it is the meter of its passes too."""

    passes: dict[tuple[int, int], int]  # type: ignore[assignment]

    def clear(self) -> None:
        self.passes = {}

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self.asked.append(limits)
        self.passes = {(1, len(tokens)): 1}
        raise NotFinite


def test_drafts_that_are_not_finite_are_paid_for() -> None:
    drafter, costs = NotANumber(0.8, 0.1), Costs.of(shaped_profile("flat"))
    adaptive = Adaptive(drafter, costs, SIZES, 16, foreseen=2.0, meter=drafter)
    text = [7, 7]
    adaptive.begin(text)
    for _ in range(200):
        with suppress(NotFinite):
            adaptive.draft(text, LIMITS)
        adaptive.accept(single(text[-1]), [0])
        text.append(1)
    plain = sum(costs.plain(fill) for fill in range(1, 201))
    spent = len(drafter.asked) * costs.pass_of_draft(1, 1)
    assert 0 < spent <= BOUND * plain
    assert adaptive.drafted[0].count(1) == len(drafter.asked), "asked for, whatever came of it"
    assert adaptive.slowdown == pytest.approx(1 + spent / plain, abs=1e-3)


@pytest.mark.parametrize(("shape", "least"), [("flat", 4), ("steep", 1)])
def test_refusals_make_trees_smaller(shape: str, least: int) -> None:
    """Of what the drafter calls likely nothing is ever accepted; the text goes on with other tokens. Where
    four rows cost two per cent more than one, that many go on being tried."""
    same = Same(0.8, 0.1)
    adaptive = begun(same, shape)
    text = [7, 7]
    sizes = []
    for _ in range(40):
        tree = adaptive.draft(text, LIMITS)
        sizes.append(len(tree))
        adaptive.accept(tree, [0])
        text.append(55)
        assert adaptive.slowdown <= 1 + BOUND
    assert sizes[0] > 4
    assert sizes[-1] == least
