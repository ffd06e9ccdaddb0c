"""Drafters measured on the tiny pair: tokens per round and draft passes at equal tree size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from pair import make_pair

from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.best_first import BestFirst
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.drafters.merge import Merge
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.drafters.static import Static
from hexgraft.host.sampling import Sampling

PROMPTS = [np.random.default_rng(seed).integers(4, 320, 12).tolist() for seed in range(8)]
LENGTH = 80


@dataclass(frozen=True)
class Pair:
    target: CpuSession
    draft: CpuSession


@dataclass(frozen=True)
class Figures:
    """Of all prompts together."""

    texts: list[list[int]]
    tokens_per_round: float
    passes_per_round: float


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Pair]:
    made: dict[float, Pair] = {}

    def at(noise: float) -> Pair:
        if noise not in made:
            bundle = make_pair(tmp_path_factory.mktemp("pair"), noise=noise)
            made[noise] = Pair(CpuSession(bundle, threads=1), CpuSession(bundle, "draft", threads=1))
        return made[noise]

    return at


def measure(pair: Pair, drafter: Drafter, size: int, sampling: Sampling | None = None) -> Figures:
    texts, rounds, passes = [], 0, 0
    for prompt in PROMPTS:
        options = DecodeOptions(LENGTH, size, sampling=sampling or Sampling())
        decoder = Decoder(pair.target, drafter, options)
        decoder.begin(prompt)
        list(decoder.rounds())
        texts.append(decoder.tokens)
        rounds += decoder.stats.rounds
        passes += decoder.stats.draft_passes
    return Figures(texts, LENGTH * len(PROMPTS) / rounds, passes / rounds)


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
def test_levels_accepts_more_than_best_first_and_chain(pairs: Callable[[float], Pair], noise: float) -> None:
    """At 16 nodes and PowerServe's defaults, in fewer than half of the chain's passes.

    Best-first makes fewer passes still, as its thresholds end drafting early, and accepts less for it.
    """
    pair = pairs(noise)
    plain = measure(pair, NoDraft(), 1)
    levels = measure(pair, Levels(DraftModel(pair.draft)), 16)
    best_first = measure(pair, BestFirst(DraftModel(pair.draft)), 16)
    chain = measure(pair, Chain(DraftModel(pair.draft)), 16)
    assert plain.texts == levels.texts == best_first.texts == chain.texts
    assert levels.tokens_per_round >= best_first.tokens_per_round
    assert levels.tokens_per_round >= chain.tokens_per_round
    assert levels.passes_per_round < 0.5 * chain.passes_per_round


def test_calibration_helps_a_draft_that_is_too_sure(pairs: Callable[[float], Pair]) -> None:
    pair = pairs(0.3)
    trusting = measure(pair, Levels(DraftModel(pair.draft), calibrated=False), 16)
    calibrated = measure(pair, Levels(DraftModel(pair.draft)), 16)
    assert calibrated.texts == trusting.texts
    assert calibrated.tokens_per_round > trusting.tokens_per_round
    assert calibrated.passes_per_round < 0.9 * trusting.passes_per_round


def test_merge_accepts_more_than_either(pairs: Callable[[float], Pair]) -> None:
    pair = pairs(0.2)
    lookup, levels = measure(pair, Lookup(), 16), measure(pair, Levels(DraftModel(pair.draft)), 16)
    merged = measure(pair, Merge(Lookup(), Levels(DraftModel(pair.draft))), 16)
    assert merged.texts == levels.texts == lookup.texts
    assert merged.tokens_per_round > max(lookup.tokens_per_round, levels.tokens_per_round)
    assert merged.passes_per_round < levels.passes_per_round


@pytest.mark.parametrize("temperature", [0.8, 1.0])
@pytest.mark.parametrize("make", [Chain, Levels, Static])
def test_following_the_targets_noise_raises_acceptance_and_changes_nothing(
    pairs: Callable[[float], Pair], make: Callable[[DraftModel], Drafter], temperature: float
) -> None:
    """Gumbel coupling: the same text as plain sampling in a good fifth fewer rounds at least."""
    pair, sampling = pairs(0.1), Sampling(temperature=temperature, seed=7)
    plain = measure(pair, NoDraft(), 1, sampling)
    alone = measure(pair, make(DraftModel(pair.draft)), 12, sampling)
    followed = measure(pair, make(DraftModel(pair.draft, sampling)), 12, sampling)
    assert plain.texts == alone.texts == followed.texts
    assert followed.tokens_per_round > 1.2 * alone.tokens_per_round


def test_following_penalties_raises_acceptance(pairs: Callable[[float], Pair]) -> None:
    pair, sampling = pairs(0.1), Sampling(repetition=1.3, frequency=0.3)
    plain = measure(pair, NoDraft(), 1, sampling)
    alone = measure(pair, Chain(DraftModel(pair.draft)), 8, sampling)
    followed = measure(pair, Chain(DraftModel(pair.draft, sampling)), 8, sampling)
    assert plain.texts == alone.texts == followed.texts
    assert followed.tokens_per_round > 1.2 * alone.tokens_per_round
