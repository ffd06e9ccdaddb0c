"""What the host takes for trees, out of rounds whose times are known."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hexgraft.host.drafters.adaptive import LOOKED, PASSED
from hexgraft.host.drafters.ledger import Toll
from hexgraft.host.measure.toll import fit_toll
from hexgraft.host.measure.trial import Part

LESSON = 3e-6


def rounds(toll: Toll, noise: float = 0.0) -> tuple[list[Part], list[list[int]]]:
    """Two texts of a hundred rounds each, as long as the toll says, and what was drafted in them. Of what a
    tree takes, LESSON is taken in the next look."""
    rng = np.random.default_rng(3)
    parts, drafted = [], []
    for _ in range(2):
        kinds = rng.choice([PASSED, LOOKED, 1, 2, 9, 17, 32], 100).tolist()
        each, learning = [], False
        for kind in kinds:
            tokens = 1 + int(rng.integers(kind)) if kind > 0 else 1
            seconds = {PASSED: toll.passing, LOOKED: toll.looking}.get(kind, toll.drafted(kind))
            seconds += toll.token * (tokens - 1) if kind > 0 else 0.0
            if kind > 1:
                seconds -= min(LESSON, toll.tree)
            if kind != PASSED:
                seconds += min(LESSON, toll.tree) * learning
                learning = kind > 1
            each.append((seconds * (1 + noise * rng.normal()), tokens))
        drafted.append(kinds)
        parts.append(Part(0, 100, Counter(), Counter(), 0.0, each))
    return parts, drafted


TOLL = Toll(2e-6, 9e-6, 30e-6, 20e-6, 4e-6, 6e-6)


def test_the_toll_is_found() -> None:
    found = fit_toll(*rounds(TOLL), Toll(), 0.0)
    for name in TOLL.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(TOLL, name)), name
    beyond = fit_toll(*rounds(TOLL), Toll(), 50e-6)
    assert (beyond.asking, beyond.tree) == pytest.approx((30e-6, 70e-6))
    less = fit_toll(*rounds(TOLL), Toll(), -35e-6)
    assert (less.asking, less.tree) == pytest.approx((15e-6, 0))
    assert fit_toll(*rounds(TOLL), Toll(), -1.0).asking == 0


def test_what_the_machine_did_in_between_does_not_count() -> None:
    parts, drafted = rounds(TOLL, noise=0.02)
    for place in (3, 30, 77):
        seconds, tokens = parts[0].each[place]
        parts[0].each[place] = (seconds + 5e-3, tokens)
    found = fit_toll(parts, drafted, Toll(), 0.0)
    for name in TOLL.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(TOLL, name), rel=0.1), name


@pytest.mark.parametrize("true", [Toll(asking=1e-5, token=2e-6), Toll(node=3e-6), Toll()])
def test_nothing_is_less_than_free(true: Toll) -> None:
    found = fit_toll(*rounds(true, noise=0.3), Toll(), 0.0)
    assert min(getattr(found, name) for name in Toll.__struct_fields__) >= 0
    assert found.node == pytest.approx(true.node, abs=1e-6)


def one_text(rounds: list[tuple[int, float, int]]) -> tuple[list[Part], list[list[int]]]:
    """Rounds as (what was drafted, seconds, tokens)."""
    each = [(seconds, tokens) for _, seconds, tokens in rounds]
    return [Part(0, len(each), Counter(), Counter(), 0.0, each)], [[size for size, _, _ in rounds]]


def test_what_would_take_away_is_left_out_alone() -> None:
    """Here nodes make drafting quicker, which nothing does."""
    rng = np.random.default_rng(5)
    rounds = []
    for _ in range(200):
        size, tokens = int(rng.integers(2, 33)), int(rng.integers(1, 9))
        rounds.append((size, 100e-6 - 1e-6 * size + 6e-6 * (tokens - 1), tokens))
    found = fit_toll(*one_text(rounds), Toll(), 0.0)
    assert found.node == 0
    assert found.token == pytest.approx(6e-6, rel=0.2)
    assert found.asking + found.tree == pytest.approx(83e-6, rel=0.1)


def test_trees_that_are_all_alike_do_not_tell_what_a_node_takes() -> None:
    found = fit_toll(*one_text([(8, 100e-6, 1)] * 30), Toll(), 0.0)
    assert found.drafted(2) == found.drafted(32) == pytest.approx(100e-6)


def test_what_was_never_seen_is_not_free() -> None:
    found = fit_toll(*one_text([(1, 30e-6, 1)] * 30), Toll(), 0.0)
    assert found.asking == found.looking == found.passing == pytest.approx(30e-6)
    found = fit_toll(*one_text([(1, 30e-6, 1), (LOOKED, 9e-6, 1)] * 30), Toll(), 0.0)
    assert found.looking == found.passing == pytest.approx(9e-6)
    assert fit_toll([], [], Toll(asking=7e-6), 0.0) == Toll(7e-6, 7e-6, 7e-6)


def test_where_nothing_was_drafted_the_rest_is_as_known() -> None:
    part = Part(0, 2, Counter(), Counter(), 0.0, [(3e-6, 1), (5e-6, 1)])
    assert fit_toll([part], [[LOOKED, PASSED]], TOLL, 1.0) == Toll(5e-6, 3e-6, 30e-6, 20e-6, 4e-6, 6e-6)
