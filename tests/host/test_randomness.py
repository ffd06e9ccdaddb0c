"""Keyed randomness: the same everywhere, uniform, and independent between keys."""

from __future__ import annotations

import numpy as np
import pytest

from hexgraft.host.randomness import Keyed, Stream, gumbels, pick, uniforms
from hexgraft.host.sampling import Distribution


def splitmix(value: int) -> int:
    """SplitMix64's finaliser in plain integers."""
    mask = (1 << 64) - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)


@pytest.mark.parametrize(("seed", "position", "stream"), [(0, 0, 0), (7, 3, 49151), (-1, 2047, 1 << 48)])
def test_numbers_are_those_of_plain_integer_arithmetic(seed: int, position: int, stream: int) -> None:
    mask, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15
    key = splitmix((seed & mask) + golden & mask)
    key = splitmix(key ^ (position * golden + 0xBF58476D1CE4E5B9 & mask))
    expected = ((splitmix(key + stream * golden & mask) >> 12) + 0.5) * 2.0**-52
    assert uniforms(seed, position, np.array([stream]))[0] == expected


def test_numbers_are_uniform_and_uncorrelated_between_keys() -> None:
    tokens = np.arange(5000)
    rows = np.stack([uniforms(seed, position, tokens) for seed in range(4) for position in (0, 1, 2, 1000)])
    counts = np.stack([np.histogram(row, bins=50, range=(0, 1))[0] for row in rows])
    chi = ((counts - 100) ** 2 / 100).sum(axis=1)
    assert (np.abs(chi - 49) < 5 * (2 * 49) ** 0.5).all()
    correlation = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlation).max() < 5 / len(tokens) ** 0.5
    along = np.corrcoef(rows[:, 1:].ravel(), rows[:, :-1].ravel())[0, 1]
    assert abs(along) < 5 / rows.size**0.5


def test_a_draw_does_not_depend_on_what_else_could_be_drawn() -> None:
    """The noise belongs to the token: dropping losers never changes the winner."""
    rng = np.random.default_rng(0)
    for position in range(200):
        ids = np.sort(rng.choice(1000, 40, replace=False))
        weights = rng.standard_normal(40)
        winner = Distribution(ids, weights).draw(5, position)
        keep = (rng.random(40) < 0.5) | (ids == winner)
        assert Distribution(ids[keep], weights[keep]).draw(5, position) == winner


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.15, 0.05), (0.97, 0.01, 0.01, 0.01), (0.25,) * 4])
def test_gumbel_draws_have_the_law_they_are_asked_for(shares: tuple[float, ...]) -> None:
    """Chi-square over positions and over seeds."""
    count = 8000
    drawn = Distribution(np.array([2, 5, 6, 9]), np.log(shares))
    for key in (lambda i: (11, i), lambda i: (i, 11)):
        tokens = np.array([drawn.draw(*key(i)) for i in range(count)])
        seen = np.array([(tokens == token).sum() for token in drawn.ids])
        assert ((seen - count * np.array(shares)) ** 2 / (count * np.array(shares))).sum() < 16.3  # p = 0.001


def test_keyed_sources_repeat_advance_and_differ() -> None:
    first, same = Keyed(3, 10, Stream.DRAFT), Keyed(3, 10, Stream.DRAFT)
    weights = np.full(100, 0.01)
    draws = [first.draw(weights) for _ in range(50)]
    assert draws == [same.draw(weights) for _ in range(50)]
    assert len(set(draws)) > 25
    for other in (Keyed(3, 10, Stream.VERIFY), Keyed(3, 11, Stream.DRAFT), Keyed(4, 10, Stream.DRAFT)):
        assert [other.draw(weights) for _ in range(50)] != draws
    coins = [Keyed(seed, 0, Stream.VERIFY).coin(0.3) for seed in range(5000)]
    assert abs(sum(coins) - 1500) < 4 * (5000 * 0.21) ** 0.5


def test_a_stream_never_meets_the_noise_of_a_token() -> None:
    assert min(Stream) << 48 > 1 << 40
    noise = uniforms(1, 1, np.arange(1000))
    source = Keyed(1, 1, Stream.DRAFT)
    assert not set(noise.tolist()) & {source._uniform() for _ in range(1000)}


def test_pick_never_takes_a_place_of_weight_zero() -> None:
    weights = np.array([0, 0.25, 0, 0.75, 0])
    assert [pick(weights, u) for u in (0.0, 0.2499, 0.25, 1 - 2**-53)] == [1, 1, 3, 3]
    thirds = np.full(3, 0.1)
    assert pick(np.append(thirds, 0.0), np.nextafter(1.0, 0.0)) == 2


def test_gumbel_noise_has_its_mean_and_spread() -> None:
    noise = gumbels(2, 9, np.arange(200_000))
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.01)
    assert noise.std() == pytest.approx(np.pi / 6**0.5, abs=0.01)
    assert np.isfinite(noise).all()
