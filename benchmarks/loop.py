"""The decode loop by itself: host time a token as the text grows, with a large lookup corpus and no model
at all."""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np

from benchmarks.figure import Figure
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.lab.scripted_session import ScriptedSession
from hexgraft.host.session import SessionSpec

CORPUS = 50_000
TOKENS = 2_000
REPEATS = 7
VOCAB = 49_152


def figures() -> Iterator[Figure]:
    rng = np.random.default_rng(1)
    # Phrases that recur, so that lookups match and trees are drafted, as in real text.
    phrases = [rng.integers(0, VOCAB, rng.integers(4, 20)).tolist() for _ in range(400)]

    def text(length: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < length:
            tokens += phrases[int(rng.integers(len(phrases)))]
        return tokens[:length]

    corpus, script = [text(CORPUS)], text(TOKENS + 100)
    spec = SessionSpec("target", VOCAB, 1, 1, 2, 2, 1 << 20, None, 128, "scripted", 0, VOCAB)
    start = time.perf_counter()
    drafter = Lookup(corpus)
    yield Figure(f"index of {CORPUS} tokens", time.perf_counter() - start, "s")
    yield Figure("memory of that index", drafter.nbytes / 1e6, "MB")
    ratios, costs = [], []
    for _ in range(REPEATS):
        decoder = Decoder(ScriptedSession(spec, script), drafter, DecodeOptions(TOKENS, 16))
        decoder.begin(script[:50])
        quarters = [0.0] * 4
        for current in decoder.rounds():
            spent = sum(current.seconds.values())
            quarters[min(3, 4 * (current.context - 49) // TOKENS)] += spent
        ratios.append(quarters[3] / quarters[0])
        costs.append(sum(quarters) / TOKENS)
    yield Figure(f"host time a token over {TOKENS} tokens", 1e3 * statistics.median(costs), "ms", "<= 1")
    yield Figure("last quarter of the text against the first", statistics.median(ratios), "x", "<= 1.3")
    yield from growth(spec, script, drafter)


def growth(spec: SessionSpec, script: list[int], drafter: Lookup) -> Iterator[Figure]:
    """Memory that a token leaves behind, text and index included."""
    decoder = Decoder(ScriptedSession(spec, script), drafter, DecodeOptions(TOKENS, 16))
    decoder.begin(script[:50])
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in decoder.rounds():
        pass
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield Figure("memory a generated token leaves behind", (after - before) / TOKENS, "bytes", "<= 1000")
