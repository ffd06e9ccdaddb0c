"""Decoding SmolLM2: what trees bring on three prompts, and the share of time outside the graph runtime."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figure import Figure
from benchmarks.smollm2 import smollm2_bundle
from hexgraft.host.cli.demo_prompts import PROMPTS
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.stats import Stats
from hexgraft.host.text import TextCodec

TOKENS = 160
REPEATS = 3


def figures() -> Iterator[Figure]:
    bundle = smollm2_bundle()
    session, codec = CpuSession(bundle), TextCodec(bundle)
    stops = frozenset(bundle.manifest.tokenizer.stop_tokens)

    def run(drafter: Drafter, size: int, ids: list[int]) -> Stats:
        decoder = Decoder(session, drafter, DecodeOptions(TOKENS, size, stops=stops))
        decoder.begin(ids)
        for _ in decoder.rounds():
            pass
        return decoder.stats

    host = []
    for name, prompt in PROMPTS.items():
        ids = codec.encode_chat([{"role": "user", "content": prompt}])
        ratios = []
        for _ in range(REPEATS):
            plain, tree = run(NoDraft(), 1, ids), run(Lookup(), 16, ids)
            ratios.append(tree.tokens_per_second / plain.tokens_per_second)
            host.append(plain.host_share)
        yield Figure(f"{name}: plain decoding, width 1", plain.tokens_per_second, "tok/s")
        yield Figure(f"{name}: tokens a round, lookup, 16 nodes", tree.tokens_per_round)
        goal = ">= 1.8" if name == "copy-edit" else ""
        yield Figure(f"{name}: lookup trees against plain decoding", sorted(ratios)[REPEATS // 2], "x", goal)
        yield Figure(f"{name}: time outside the runtime, trees", 100 * tree.host_share, "%", "<= 5")
    yield Figure("time outside the runtime, plain decoding", 100 * sorted(host)[len(host) // 2], "%", "<= 5")
