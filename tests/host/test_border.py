"""Where rounding may have decided what a filter let through: how far logits may be off, and what they are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hexgraft.host.sampling import Sampling
from hexgraft.host.traces.border import at_border

NOISE = 0.01
"""Each of two logits may be off by so much, so that their difference is by twice that."""
E_1 = 0.36787944
"""exp(-1)"""


def told(
    top: dict[int, float],
    token: int,
    *,
    drawn: tuple[int, float] = (1, 1.0),
    prompt: list[int] | None = None,
    emitted: list[int] | None = None,
    temperature: float = 1.0,
    **sampling: Any,
) -> bool:
    """Of the first token of an answer, which had these candidates."""
    header = SimpleNamespace(sampling=Sampling(temperature, **sampling), prompt=prompt or [])
    trace: Any = SimpleNamespace(header=header, emitted=emitted or [])
    judged: Any = SimpleNamespace(top=list(top.items()), token=drawn[0], logit=drawn[1])
    return at_border(trace, 0, judged, token, NOISE)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
@pytest.mark.parametrize(("gap", "border"), [(0.019, True), (0.021, False)])
def test_two_logits_are_off_by_twice_the_noise(temperature: float, gap: float, border: bool) -> None:
    assert told({1: 1.0, 2: 1.0 - gap}, 2, temperature=temperature, top_k=1) == border
    for sign in (-1, 1):
        far = 1.0 - temperature + sign * gap
        assert told({1: 1.0, 2: far}, 2, temperature=temperature, min_p=E_1) == border


@pytest.mark.parametrize(
    ("top", "sampling", "border"),
    [
        # The first token has a share of 0.731 of the two, 1.02 times as much where it is lifted.
        ({1: 1.0, 2: 0.0}, {"top_p": 0.74}, True),
        ({1: 1.0, 2: 0.0}, {"top_p": 0.75}, False),
        # Of the tokens that top-k leaves, which are the likeliest.
        ({1: 1.0, 2: 0.0, 3: -0.5}, {"top_k": 2, "top_p": 0.7}, True),
        ({1: 1.0, 2: 0.0, 3: -0.5}, {"top_k": 2, "top_p": 0.8}, False),
        # One as likely as itself may come before it.
        ({1: 1.0, 2: 0.0, 3: 0.01}, {"top_p": 0.78}, True),
        ({1: 1.0, 2: -20.0}, {}, False),
    ],
)
def test_the_mass_before_a_token(top: dict[int, float], sampling: dict[str, Any], border: bool) -> None:
    assert told(top, 2, **sampling) == border


def test_penalties_count_as_they_did_where_it_was_drawn() -> None:
    """Of tokens before it, and not of itself."""
    assert told({1: 1.0, 2: 2.0}, 2, prompt=[2], repetition=2.0, top_k=1)
    assert told({1: 1.0, 2: 1.0}, 2, emitted=[2], repetition=2.0, top_k=1)


def test_the_drawn_token_counts_where_it_is_no_candidate() -> None:
    assert told({1: 1.0}, 1, drawn=(2, 0.99), top_k=1)
    assert not told({1: 1.0}, 3, drawn=(2, 0.99), top_k=1)


def test_greedy_decoding_filters_nothing() -> None:
    assert not told({1: 1.0, 2: 1.0}, 2, temperature=0.0, top_k=1)
