"""The books of a run kept to what pays: what a round may cost, when to look again, when to rest."""

from __future__ import annotations

import pytest
from shapes import shaped_profile

from hexgraft.host.drafters.ledger import BOUND, HORIZON, LONG, Ledger, Purse, Toll, Trust
from hexgraft.host.measure.costs import Costs


def test_looks_come_when_the_ledger_says() -> None:
    """One round sooner nothing could have been drafted; also of a text that is shorter than HORIZON."""
    toll = Toll(passing=0.002, looking=0.02)
    for plain, behind, least in ((20.0, 0.0, 1.31), (20.0, 0.3, 1.03), (20.0, 2.0, 1.1), (2.0, 0.1, 0.4)):
        ledger = Ledger()
        ledger.book(1, plain + behind, plain)
        assert ledger.slack(1.0) < least
        rounds = ledger.wait(1.0, least, toll)
        assert 1 < rounds < LONG
        ledger.book(1, 1.0 + toll.looking, 1.0)
        for _ in range(rounds - 2):
            ledger.book(1, 1.0 + toll.passing, 1.0)
        assert ledger.slack(1.0) < least - 1e-9
        ledger.book(1, 1.0 + toll.passing, 1.0)
        assert ledger.slack(1.0) >= least - 1e-9
    assert ledger.wait(1.0, 0.0, toll) == 1
    assert ledger.wait(1.0, 1e9, toll) == LONG


def test_rounds_booked_together_count_as_one_by_one() -> None:
    alone, together = Ledger(), Ledger()
    for ledger in (alone, together):
        ledger.book(3, 2.0, 3.0)
    for _ in range(40):
        alone.book(1, 1.1, 1.0)
    together.rest(40, 1.1, 1.0)
    for name in ("paid", "plain", "recent_tokens", "recent_seconds"):
        assert getattr(together, name) == pytest.approx(getattr(alone, name))


def test_a_purse_buys_the_rows_that_bring_most() -> None:
    costs = Costs.of(shaped_profile("steep", draft=0.2))
    one = costs.pass_of_draft(1, 0)
    assert Purse(costs, 0, token=0.05, left=1.0).afford([0.9]) == 1
    assert Purse(costs, 0, token=0.05, left=one / 2).afford([0.9]) == 0
    assert Purse(costs, 0, token=0.001, left=1.0).afford([0.9]) == 0
    # The second row widens the pass to four: the third and fourth come with it.
    purse = Purse(costs, 0, token=0.05, left=1.0)
    assert purse.afford([0.9, 0.3, 0.2, 0.1, 0.01]) == 4
    assert purse.left == pytest.approx(1.0 - costs.pass_of_draft(4, 0))


def test_the_ledger_bounds_what_a_round_may_lose() -> None:
    ledger = Ledger()
    assert ledger.slack(1.0) == pytest.approx(BOUND * HORIZON)
    ledger.book(1, 3.0, 1.0)
    assert ledger.slack(1.0) == pytest.approx(BOUND * HORIZON - 2.0)
    for _ in range(200):
        ledger.book(1, 1.0, 1.0)
    assert ledger.slack(1.0) == pytest.approx(BOUND * 202 - 2.0)
    assert ledger.worth(1.0, 2.0) <= 1.0


def test_trust_rests_longer_after_every_failure_and_recovers() -> None:
    trust = Trust()
    rests = []
    for _ in range(3):
        while trust.pause == 0:
            trust.learn(-1.0)
        rests.append(trust.rest())
        assert trust.rest() == 0
    assert rests == [8, 16, 32]
    trust.learn(1.0)
    trust.learn(1.0)
    assert (trust.failures, trust.pause) == (0, 0)
