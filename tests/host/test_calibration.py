"""Calibration of draft probabilities by what was accepted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hexgraft.host.drafters.calibration import Calibration, trials
from hexgraft.host.tree import ROOT, TreeBuilder


def measured(calibration: Calibration, share: float) -> float:
    return math.exp(calibration.correct(math.log(share)))


def test_nothing_learned_changes_nothing() -> None:
    calibration = Calibration()
    for share in np.linspace(0.001, 1, 200):
        log = math.log(share)
        assert calibration.correct(log) == log
    assert calibration.correct(1e-7) == 0.0


@pytest.mark.parametrize("factor", [0.4, 1.0, 1.3])
def test_systematic_error_is_learned(factor: float) -> None:
    rng = np.random.default_rng(1)
    calibration = Calibration()
    for _ in range(300):
        shares = rng.uniform(0.01, 0.7, 80)
        calibration.learn((share, rng.random() < factor * share) for share in shares)
    for share in (0.15, 0.4, 0.6):
        assert measured(calibration, share) == pytest.approx(factor * share, rel=0.35)


def test_bins_are_learned_apart_old_figures_fade_and_certainty_is_the_limit() -> None:
    calibration = Calibration()
    for _ in range(300):
        calibration.learn([(0.95, False), (0.3, True)])
    assert measured(calibration, 0.95) < 0.2
    assert measured(calibration, 0.3) > 0.7
    assert measured(calibration, 0.49) == 1
    for _ in range(600):
        calibration.learn([(0.95, True)])
    assert measured(calibration, 0.95) > 0.9
    assert measured(calibration, 0.3) == pytest.approx(0.3, rel=0.01)


def test_rounds_without_a_trial_fade_what_was_learned() -> None:
    one_by_one, together = Calibration(), Calibration()
    for calibration in (one_by_one, together):
        calibration.learn([(0.3, True), (0.95, False)])
    for _ in range(30):
        one_by_one.learn([])
    together.rest(30)
    for share in (0.3, 0.95):
        assert measured(one_by_one, share) == pytest.approx(measured(together, share))
    assert 0.3 < measured(together, 0.3) < 0.35
    together.rest(400)
    assert measured(together, 0.3) == pytest.approx(0.3, rel=1e-4)
    for _ in range(400):
        one_by_one.learn([])
    for calibration in (one_by_one, together):
        calibration.learn([(0.3, False)])
    assert measured(one_by_one, 0.3) == pytest.approx(measured(together, 0.3)) != 0.3


def test_trials_are_the_children_of_the_accepted_path() -> None:
    builder = TreeBuilder(9)
    first = builder.add(ROOT, 1, 0.5, "a")
    builder.add(ROOT, 2, 0.25, "a")
    second = builder.add(first, 3, 0.75, "a")
    other = builder.add(2, 4, 0.125, "a")
    builder.add(second, 5, 0.0625, "a")
    tree = builder.build()
    assert other == 4
    assert trials(tree, [0, first]) == [(0.5, True), (0.25, False), (0.75, False)]
    assert trials(tree, [0, first, second]) == [(0.5, True), (0.25, False), (0.75, True), (0.0625, False)]
    Calibration().learn([(math.nan, True), (0.0, True)])
