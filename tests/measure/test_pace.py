"""Drafters over a model ask before each pass but the first, and stop where the answer is no."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fake_session import FakeModel, FakeSession

from hexgraft.host.drafters.base import Limits
from hexgraft.host.drafters.best_first import BestFirst
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.model import DraftModel, ModelDrafter
from hexgraft.host.drafters.static import Static

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
KINDS: list[type[ModelDrafter]] = [Chain, BestFirst, Levels, Static]


class Allowance:
    """Affords so many passes of as many rows as are wanted, or of `rows` at most; notes what was foreseen."""

    def __init__(self, passes: int, rows: int = 99) -> None:
        self.passes, self.rows = passes, rows
        self.gains: list[list[float]] = []

    def afford(self, gains: Sequence[float]) -> int:
        self.gains.append(list(gains))
        self.passes -= 1
        return min(self.rows, len(gains)) if self.passes >= 0 else 0


def drafted(kind: type[ModelDrafter], pace: Allowance | None) -> tuple[list[int], int, int]:
    drafter = kind(DraftModel(FakeSession(FakeModel(gain=6.0), role="draft")))
    drafter.begin(PROMPT)
    tree = drafter.draft(PROMPT, Limits(16, 8, frozenset(), pace))
    return tree.tokens.tolist(), drafter.passes, drafter.rows


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_passes_than_are_afforded(kind: type[ModelDrafter]) -> None:
    free = drafted(kind, None)
    assert drafted(kind, Allowance(99)) == free
    assert free[1] > 1
    for passes in range(min(3, free[1])):
        tokens, made, _ = drafted(kind, Allowance(passes))
        assert made == 1 + passes
        assert len(tokens) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_gains_are_shares_of_a_token_and_the_likeliest_come_first(kind: type[ModelDrafter]) -> None:
    pace = Allowance(99)
    drafted(kind, pace)
    for gains in pace.gains:
        assert gains == sorted(gains, reverse=True)
        assert all(0 <= gain <= 1 for gain in gains)
    assert np.mean(pace.gains[-1]) < np.mean(pace.gains[0]) + 1e-9


@pytest.mark.parametrize("kind", [Levels, Static])
def test_levels_are_narrowed_to_what_is_afforded(kind: type[ModelDrafter]) -> None:
    _, passes, rows = drafted(kind, Allowance(99, rows=1))
    assert rows == passes
