"""The toll of a drafter kept to what pays: when it is paid, what is left undone for it, and what goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from shapes import shaped_profile

from hexgraft.host.drafters.adaptive import LOOKED, PASSED, Adaptive
from hexgraft.host.drafters.base import Limits, NoDraft
from hexgraft.host.drafters.calibration import Calibration
from hexgraft.host.drafters.ledger import BOUND, HORIZON, LONG, Toll
from hexgraft.host.measure.costs import Costs
from hexgraft.host.tree import Draws, TokenTree, TreeBuilder

SIZES = [4, 8, 16, 32]
LIMITS = Limits(32, 20, frozenset())
PLAIN = 0.05
"""Seconds of a plain round of these profiles."""


class Willing(NoDraft):
    """A chain as long as may be, after as many passes of a draft model as it can afford."""

    name = "willing"
    draws: Draws | None = Draws.RANKED

    def __init__(self, share: float = 0.9, *, model: bool = False) -> None:
        self.share, self.model = share, model
        self.asked: list[Limits] = []
        self.passes_made: dict[tuple[int, int], int] = {}

    @property
    def meter(self) -> Willing | None:
        return self if self.model else None

    @property
    def passes(self) -> dict[tuple[int, int], int]:  # type: ignore[override]
        return self.passes_made

    def clear(self) -> None:
        self.passes_made = {}

    def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
        self.asked.append(limits)
        builder, node, fill = TreeBuilder(tokens[-1]), 0, len(tokens) - 1
        self.passes_made = {(1, fill): 1} if self.model else {}
        while self.model and limits.pace is not None and limits.pace.afford([1.0]):
            self.passes_made[1, fill] += 1
        while len(builder) < limits.nodes:
            node = builder.add(node, 1, self.share, self.name)
        return builder.build()


def begun(drafter: Willing, toll: Toll, shape: str = "flat", *, draft: float = 0.1) -> Adaptive:
    costs = Costs.of(shaped_profile(shape, draft=draft), toll)
    adaptive = Adaptive(drafter, costs, SIZES, 32, foreseen=2.0, meter=drafter.meter)
    adaptive.begin([7, 7])
    return adaptive


def go_on(adaptive: Adaptive, text: list[int], rounds: int, accepted: int = 1) -> None:
    """Rounds of which `accepted` nodes are accepted, the root counted, as far as there are so many."""
    for _ in range(rounds):
        tree = adaptive.draft(text, LIMITS)
        path = range(min(accepted, len(tree)))
        adaptive.accept(tree, path)
        text += [*[1] * (len(path) - 1), 55]


def test_tokens_after_the_first_are_paid_for() -> None:
    toll = Toll(token=0.002)
    adaptive, text = begun(Willing(), toll), [7, 7]
    costs = adaptive._costs
    tree = adaptive.draft(text, LIMITS)
    adaptive.accept(tree, [0, 1, 2])
    plain = sum(costs.plain(fill) for fill in (1, 2, 3))
    assert adaptive.slowdown == pytest.approx((costs.verify(len(tree), 1) + 2 * 0.002) / plain)


def test_a_tree_whose_tokens_take_the_host_what_they_bring_is_cut_to_nothing() -> None:
    assert len(begun(Willing(), Toll()).draft([7, 7], LIMITS)) > 1
    assert len(begun(Willing(), Toll(token=PLAIN)).draft([7, 7], LIMITS)) == 1


@pytest.mark.parametrize("node", [0.0001, 0.003 * PLAIN, 0.02 * PLAIN])
@pytest.mark.parametrize("asking", [0.0, 0.2 * PLAIN, 0.3 * PLAIN])
def test_nodes_and_draft_passes_together_lose_no_more_than_may_be(asking: float, node: float) -> None:
    """Both are asked for before it is known what the other takes."""
    drafter = Willing(model=True)
    adaptive = begun(drafter, Toll(asking=asking, node=node), draft=0.01)
    text = [7, 7]
    for _ in range(300):
        go_on(adaptive, text, 1)
        ledger = adaptive._ledger
        assert ledger.paid - ledger.plain <= BOUND * max(ledger.plain, HORIZON * PLAIN * 1.01) + 1e-9
    assert len(drafter.asked) > 3


def test_nodes_that_take_next_to_nothing_are_not_counted_up() -> None:
    drafter = Willing()
    begun(drafter, Toll(node=1e-310)).draft([7, 7], LIMITS)
    assert drafter.asked[0].nodes == 32


def test_rounds_that_may_have_no_tree_take_no_look() -> None:
    adaptive, text = begun(Willing(), Toll(looking=PLAIN)), [7, 7]
    for limits in (Limits(1, 20, frozenset()), Limits(32, 0, frozenset())):
        tree = adaptive.draft(text, limits)
        adaptive.accept(tree, [0])
        text.append(1)
    assert adaptive.drafted == [[PASSED, PASSED]]
    assert adaptive.slowdown == 1.0


def test_asking_for_the_slowdown_changes_nothing() -> None:
    books = []
    for asked in (True, False):
        adaptive, text = begun(Willing(), Toll(0.0001, 0.001, 0.5 * PLAIN), "steep"), [7, 7]
        for _ in range(60):
            tree = adaptive.draft(text, LIMITS)
            if asked:
                assert adaptive.slowdown > 0.9
            adaptive.accept(tree, [0])
            text.append(55)
        books.append((adaptive.slowdown, adaptive.drafted))
        assert {PASSED, LOOKED} <= set(adaptive.drafted[0])
    assert books[0] == books[1]


def waiting(drafter: Willing) -> tuple[Adaptive, list[int]]:
    """After a tree that lost so much that no other may be drafted for a while."""
    adaptive, text = begun(drafter, Toll(passing=0.001 * PLAIN, asking=0.3 * PLAIN)), [7, 7]
    go_on(adaptive, text, 5)
    assert adaptive.drafted[0][-1] == PASSED
    return adaptive, text


def test_another_text_waits_for_nothing() -> None:
    drafter = Willing()
    adaptive, _ = waiting(drafter)
    count = len(drafter.asked)
    adaptive.begin([7, 7])
    assert adaptive.slowdown == 1.0
    adaptive.draft([7, 7], LIMITS)
    assert len(drafter.asked) == count + 1


@pytest.mark.parametrize("keep", [0, 3])
def test_a_text_that_goes_on_lets_its_draft_model_rest(keep: int) -> None:
    """The rest was earned by the model, and not by the text's books, which begin anew."""
    drafter = Willing(model=True)
    adaptive, text = begun(drafter, Toll()), [7, 7]
    while not adaptive._rest:
        go_on(adaptive, text, 1)
    count, rest = len(drafter.asked), adaptive._rest
    adaptive.begin(text, keep)
    go_on(adaptive, text, rest)
    assert (len(drafter.asked) == count) == (keep > 0)
    go_on(adaptive, text, 1)
    assert len(drafter.asked) > count


def test_what_was_learned_fades_while_rounds_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[int] = []
    monkeypatch.setattr(Calibration, "rest", lambda self, rounds: rests.append(rounds))
    adaptive, text = waiting(Willing())
    go_on(adaptive, text, 100)
    passed = adaptive.drafted[0].count(PASSED)
    assert passed - adaptive._passed == sum(rests) > 0


def test_rounds_without_a_draft_pass_teach_nothing_of_the_model() -> None:
    """As where a lookup promised enough, and the model beside it was spared."""

    class Spared(Willing):
        def draft(self, tokens: Sequence[int], limits: Limits) -> TokenTree:
            tree = super().draft(tokens, limits)
            self.clear()
            return tree

    drafter = Spared(model=True)
    adaptive, text = begun(drafter, Toll()), [7, 7]
    go_on(adaptive, text, 200)
    assert len(drafter.asked) > 10
    assert (adaptive._trust.outcomes, adaptive._trust.failures) == ([], 0)


def test_nodes_leave_a_draft_model_its_passes() -> None:
    """Where nodes alone could take all that is left to lose."""
    drafter = Willing(model=True)
    begun(drafter, Toll(asking=0.3 * PLAIN, node=0.003 * PLAIN), draft=0.01).draft([7, 7], LIMITS)
    assert 4 < drafter.asked[0].nodes < 20
    assert drafter.passes_made[1, 1] > 2


def test_what_drafting_takes_beside_passes_is_paid_for() -> None:
    """Of all nodes drafted, the refused ones and those that were cut included."""
    costs = Costs.of(shaped_profile("flat"), Toll(0.1, 0.2, 0.006, 0.004, 0.0001, 0.001))
    adaptive = Adaptive(Willing(0.7), costs, SIZES, 16, foreseen=2.0)
    adaptive.begin([7, 7])
    tree = adaptive.draft([7, 7], LIMITS)
    adaptive.accept(tree, [0])
    drafted = adaptive.drafted[0][0]
    assert drafted > len(tree) > 1
    paid = costs.verify(len(tree), 1) + 0.01 + (drafted - 1) * 0.0001
    assert adaptive.slowdown == pytest.approx(paid / costs.plain(1))


def test_no_more_nodes_are_asked_for_than_drafting_them_may_lose() -> None:
    willing, slack = Willing(), BOUND * HORIZON * 0.05
    costs = Costs.of(shaped_profile("flat"), Toll(node=slack / 5))
    adaptive = Adaptive(willing, costs, SIZES, 16, foreseen=2.0)
    adaptive.begin([7, 7])
    adaptive.draft([7, 7], LIMITS)
    (asked,) = willing.asked
    lost = costs.verify(asked.nodes, 1) + costs.toll.drafted(asked.nodes) - costs.plain(1)
    assert 2 < asked.nodes < 7
    assert lost <= slack + costs.verify(asked.nodes, 1) - costs.verify(2, 1)


@pytest.mark.parametrize("toll", [Toll(), Toll(0.0002, 0.001, 0.03), Toll(1.0, 1.0, 1.0)])
def test_rounds_pass_without_a_look_while_nothing_may_be_lost(toll: Toll) -> None:
    """And are paid for all the same; where looking alone costs more than that, there is no end to it."""
    willing, costs = Willing(), Costs.of(shaped_profile("steep"), toll)
    adaptive, text = Adaptive(willing, costs, SIZES, 16, foreseen=2.0), [7, 7]
    adaptive.begin(text)
    paid = plain = 0.0
    for _ in range(400):
        tree, fill = adaptive.draft(text, LIMITS), len(text) - 1
        plain += costs.plain(fill)
        paid += costs.verify(len(tree), fill)
        kind = adaptive.drafted[0][-1]
        paid += {PASSED: toll.passing, LOOKED: toll.looking}.get(kind, toll.drafted(kind))
        adaptive.accept(tree, [0])
        text.append(55)
        if kind != PASSED:
            assert adaptive.slowdown == pytest.approx(paid / plain)
    passed, looked = (adaptive.drafted[0].count(kind) for kind in (PASSED, LOOKED))
    assert len(adaptive.drafted[0]) == 400
    assert passed + looked + len(willing.asked) == 400
    assert passed > 5 * looked
    if toll.passing < BOUND * 0.05:
        assert len(willing.asked) > 5
        assert paid <= (1 + BOUND) * plain
    else:
        assert not willing.asked
        assert looked == math.ceil(400 / LONG)
