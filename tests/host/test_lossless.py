"""`match` emits plain decoding's tokens under any drafter, tree and option; a wrong mask, position or slot
would show."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from fake_session import FakeModel, FakeRows, FakeSession

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter
from hexgraft.host.drafters.best_first import BestFirst, BestFirstKnobs
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.lookup import Lookup, LookupKnobs
from hexgraft.host.drafters.merge import Merge
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.sampled import Sampled
from hexgraft.host.drafters.shape import AcceptanceTable
from hexgraft.host.drafters.static import Static
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Visibility
from hexgraft.host.tree import Draws

MODEL = FakeModel(seed=2)
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
LENGTH = 500
SAMPLINGS = [
    Sampling(temperature=temperature, seed=17, **options)  # type: ignore[arg-type]
    for temperature in (0, 0.5, 1, 1.5)
    for options in (
        {},
        {"repetition": 1.2, "presence": 0.3, "frequency": 0.01},
        {"repetition": 1.05, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
    )
]


@lru_cache
def plain(sampling: Sampling) -> list[int]:
    decoder = Decoder(FakeSession(MODEL), None, DecodeOptions(LENGTH, 1, sampling=sampling))
    decoder.begin(PROMPT)
    list(decoder.rounds())
    return decoder.tokens


def random_drafter(rng: np.random.Generator, sampling: Sampling) -> Drafter:
    noise, capacity = float(rng.choice([0, 0.1, 0.3])), int(rng.choice([200, 640]))
    follow = sampling if rng.random() < 0.5 else None

    def model() -> DraftModel:
        return DraftModel(FakeSession(MODEL.noisy(noise), role="draft", capacity=capacity), follow)

    table = AcceptanceTable(rng.dirichlet(np.ones(4))[:3].tolist())
    top_k, depth = int(rng.integers(1, 6)), int(rng.integers(1, 8))
    knobs = BestFirstKnobs(p_base=float(rng.random()), min_prob=float(rng.choice([0, 0.2])))
    lookup = Lookup([[1, 2, 3]], LookupKnobs(min_match=int(rng.integers(1, 4))))
    makers = [
        lambda: Chain(model()),
        lambda: BestFirst(model(), knobs),
        lambda: Levels(model(), top_k=top_k, depth=depth),
        lambda: Static(model(), table),
        lambda: Sampled(model(), Draws.DISTINCT, sampling, table),
        lambda: Sampled(model(), Draws.INDEPENDENT, sampling, table),
        lambda: lookup,
        lambda: Merge(lookup, Levels(model(), top_k=top_k, depth=depth)),
    ]
    return makers[int(rng.integers(len(makers)))]()


def random_options(rng: np.random.Generator, sampling: Sampling) -> DecodeOptions:
    depth = int(rng.integers(1, 12)) if rng.random() < 0.5 else None
    return DecodeOptions(LENGTH, int(rng.integers(2, 25)), depth, sampling=sampling)


@pytest.mark.parametrize("case", range(100))
def test_trees_emit_the_tokens_of_plain_decoding(case: int) -> None:
    rng = np.random.default_rng(case)
    sampling = SAMPLINGS[case % len(SAMPLINGS)]
    decoder = Decoder(
        FakeSession(MODEL, capacity=520 if case % 4 == 0 else 640),
        random_drafter(rng, sampling),
        random_options(rng, sampling),
    )
    decoder.begin(PROMPT)
    list(decoder.rounds())
    assert decoder.tokens == plain(sampling)
    assert decoder.stats.tokens == LENGTH


class SeesSibling(FakeSession):
    """Every row of a tree that can sees one node too many, which is not its ancestor."""

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> FakeRows:
        rows = visible.rows.copy()
        for row, strangers in zip(rows, np.tril(~rows, -1), strict=True):
            row[np.flatnonzero(strangers)[-1:]] = True
        return super().forward(
            tokens, positions, Visibility(visible.prefix, rows, visible.slots, visible.seen)
        )


class PlacesBySlot(FakeSession):
    """Positions count rows instead of depths: the mistake that broke PowerServe's trees on the CPU."""

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> FakeRows:
        return super().forward(tokens, range(positions[0], positions[0] + len(positions)), visible)


class StoresNeighbour(FakeSession):
    """The last of several committed rows comes from the row beside it."""

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        rows = list(rows)
        if len(rows) > 1 and rows[-1] > rows[-2] + 1:
            rows[-1] -= 1
        super().store(rows, slots)


@pytest.mark.parametrize("mutant", [FakeSession, SeesSibling, PlacesBySlot, StoresNeighbour])
def test_one_wrong_mask_position_or_slot_changes_the_text(mutant: type[FakeSession]) -> None:
    for sampling in (SAMPLINGS[0], SAMPLINGS[1], SAMPLINGS[6], SAMPLINGS[9]):
        drafter = Levels(DraftModel(FakeSession(MODEL.noisy(0.3)), sampling))
        decoder = Decoder(mutant(MODEL), drafter, DecodeOptions(LENGTH, 16, sampling=sampling))
        decoder.begin(PROMPT)
        list(decoder.rounds())
        assert (decoder.tokens == plain(sampling)) == (mutant is FakeSession)
