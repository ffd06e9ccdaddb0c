"""Penalties and filters against references written out token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake_session import FakeRows

from hexgraft.host.logits import NotFinite
from hexgraft.host.sampling import History, Sampling, distribution, row_distribution
from hexgraft.models.errors import UsageError


def reference(
    logits: list[float], sampling: Sampling, prompt: list[int], generated: list[int]
) -> dict[int, float]:
    """The distribution by the documented order: penalties, temperature, top-k, top-p, min-p."""
    values = dict(enumerate(logits))
    for token in set(prompt) | set(generated):
        value = values[token]
        values[token] = value / sampling.repetition if value > 0 else value * sampling.repetition
    for token in set(generated):
        values[token] -= sampling.presence + sampling.frequency * generated.count(token)
    order = sorted(values, key=lambda token: (-values[token], token))
    if sampling.temperature == 0:
        return {order[0]: 1.0}
    order = [token for token in order if values[token] > -math.inf]
    if sampling.top_k:
        order = order[: sampling.top_k]
    weights = {token: math.exp((values[token] - values[order[0]]) / sampling.temperature) for token in order}
    total, mass, kept = sum(weights.values()), 0.0, []
    for token in order:
        if not kept or mass < sampling.top_p * total:
            kept.append(token)
        mass += weights[token]
    kept = [token for token in kept if weights[token] >= sampling.min_p]
    total = sum(weights[token] for token in kept)
    return {token: weights[token] / total for token in kept}


def random_sampling(rng: np.random.Generator) -> Sampling:
    return Sampling(
        temperature=float(rng.choice([0, 0.3, 1, 2])),
        top_k=int(rng.choice([0, 1, 3, 200])),
        top_p=float(rng.choice([1, 0.9, 0.4, 1e-6])),
        min_p=float(rng.choice([0, 0.05, 0.6, 1])),
        repetition=float(rng.choice([1, 1.3, 0.8])),
        presence=float(rng.choice([0, 0.7, -0.5])),
        frequency=float(rng.choice([0, 0.2])),
    )


def test_distributions_are_those_of_the_reference() -> None:
    for case in range(400):
        rng = np.random.default_rng(case)
        vocab = int(rng.choice([4, 60, 300]))
        # Coarse values make ties common.
        logits = (rng.integers(-12, 12, vocab) / 4).astype(np.float32)
        logits[rng.random(vocab) < 0.1] = -np.inf
        logits[int(rng.integers(vocab))] = 1.25
        prompt, generated = (rng.integers(0, vocab, int(rng.integers(0, 9))).tolist() for _ in range(2))
        sampling = random_sampling(rng)
        history = History(prompt).after(generated)
        before = logits.copy()
        found = distribution(logits, sampling, history)
        expected = reference(logits.astype(float).tolist(), sampling, prompt, generated)
        assert np.array_equal(logits, before)
        assert found.ids.tolist() == sorted(expected), sampling
        shares = [expected[token] for token in sorted(expected)]
        assert found.probabilities() == pytest.approx(shares, abs=1e-12)


def test_a_row_of_a_pass_gives_the_same_distribution() -> None:
    rng = np.random.default_rng(3)
    rows = FakeRows(rng.standard_normal((3, 40)))
    for case in range(40):
        sampling = random_sampling(np.random.default_rng(case))
        history = History([1, 2]).after([3, 3])
        for row in range(3):
            one, other = (
                row_distribution(rows, row, sampling, history),
                distribution(rows.logits(row), sampling, history),
            )
            assert np.array_equal(one.ids, other.ids)
            assert np.array_equal(one.log_weights, other.log_weights)


def test_ties_go_to_the_lowest_token() -> None:
    flat = np.zeros(300, np.float32)
    assert distribution(flat, Sampling(), History()).ids.tolist() == [0]
    assert distribution(flat, Sampling(temperature=1, top_k=3), History()).ids.tolist() == [0, 1, 2]
    assert distribution(flat, Sampling(temperature=1, top_p=0.01), History()).ids.tolist() == [0, 1, 2]


def test_penalties_of_a_subset_are_those_of_the_whole_row() -> None:
    rng = np.random.default_rng(8)
    for case in range(100):
        sampling = random_sampling(np.random.default_rng(case))
        history = History(rng.integers(0, 50, 9).tolist()).after(rng.integers(0, 50, 9).tolist())
        row = rng.standard_normal(50)
        subset = np.sort(rng.choice(50, 12, replace=False))
        part = row[subset].copy()
        history.penalise(part, sampling, subset)
        history.penalise(row, sampling)
        assert np.array_equal(part, row[subset])


def test_histories_are_independent_copies() -> None:
    history = History([1])
    longer = history.after([2, 2])
    row, penalised = np.zeros(4), np.zeros(4)
    history.penalise(row, Sampling(presence=1, frequency=1))
    longer.penalise(penalised, Sampling(presence=1, frequency=1))
    assert row.tolist() == [0, 0, 0, 0]
    assert penalised.tolist() == [0, 0, -3, 0]


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_refused(temperature: float, bad: float) -> None:
    row = np.zeros(300, np.float32)
    row[7] = bad
    with pytest.raises(NotFinite):
        distribution(row, Sampling(temperature=temperature), History())
    with pytest.raises(NotFinite):
        distribution(np.full(300, -np.inf, np.float32), Sampling(temperature=temperature), History())


def test_a_tiny_temperature_is_greedy_and_does_not_overflow() -> None:
    row = np.array([1, 3, 2], np.float32)
    found = distribution(row, Sampling(temperature=1e-300), History())
    assert found.probabilities().max() == 1
    assert found.draw(0, 0) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", -1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("repetition", 0),
        ("repetition", 1e-308),
        ("repetition", 1e308),
        ("presence", math.inf),
        ("presence", -1e308),
        ("frequency", 1e308),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: float) -> None:
    with pytest.raises(UsageError):
        Sampling(**{option: value})  # type: ignore[arg-type]
