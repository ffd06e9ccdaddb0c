"""Drafts of SmolLM2: what the shipped head brings on the lab's prompts, alone and together with lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.figure import Figure
from benchmarks.smollm2 import smollm2_pair
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.lab.comparison import compare_drafters, transcribe
from hexgraft.host.lab.prompts import CATEGORIES, LAB_PROMPTS
from hexgraft.host.measure.setting import Setting, maker
from hexgraft.host.sampling import Sampling
from hexgraft.host.stats import Stats
from hexgraft.host.text import TextCodec

TOKENS = 96
THREADS = 2
SHAPES = {"chain": 5, "best-first": 16, "levels": 16, "lookup": 16, "lookup+levels": 16}
"""Nodes of a tree by drafter; a chain of four drafted tokens has five."""
TIMED = (
    Setting("lookup+levels", 8),
    Setting("lookup+levels", 16, options=("depth=2", "enough=1", "top_k=1")),
    Setting("lookup", 16),
    Setting("chain", 4),
    Setting("levels", 8),
)
PHASES = ("draft", "target", "target host", "verify", "graft")
_GOALS = {"chain": ">= 2.0", "levels": ">= 2.5"}


def figures() -> Iterator[Figure]:
    bundle = smollm2_pair()
    target = CpuSession(bundle, threads=THREADS)
    draft = CpuSession(bundle, "draft", threads=THREADS)
    codec = TextCodec(bundle)
    stops = frozenset(bundle.manifest.tokenizer.stop_tokens)
    options = DecodeOptions(max_tokens=TOKENS, tree_size=1, stops=stops)

    def encode(text: str) -> list[int]:
        return codec.encode_chat([{"role": "user", "content": text}])

    transcripts = list(transcribe(target, LAB_PROMPTS, encode, options))
    for name, size in SHAPES.items():
        makers: dict[str, Callable[[], Drafter]] = {name: partial(make_drafter, name, bundle, lambda: draft)}
        for row in compare_drafters(target, transcripts, makers, [size], options, lambda: None):
            goal = _GOALS.get(name, "") if row.category == "all" else ""
            yield Figure(
                f"{name}, {size} nodes, {row.category}: tokens a round", row.tokens_per_round, "", goal
            )

    def run(drafter: Drafter, size: int, ids: list[int]) -> Stats:
        decoder = Decoder(target, drafter, DecodeOptions(TOKENS, size, stops=stops))
        decoder.begin(ids)
        for _ in decoder.rounds():
            pass
        return decoder.stats

    make = maker(bundle, Sampling())
    for setting in TIMED:
        plain, drafted = [], []
        for category in CATEGORIES:
            one = next(prompt for prompt in LAB_PROMPTS if prompt.category == category)
            ids = encode(one.text)
            plain.append(run(NoDraft(), 1, ids))
            drafted.append(run(make(setting, lambda: draft), setting.tree_size, ids))
        ratio = _speed(drafted) / _speed(plain)
        goal = ">= 1.15" if setting.drafter == "lookup+levels" else ""
        yield Figure(f"{setting.title}: speed against plain decoding", ratio, "x", goal)
        rounds = sum(stats.rounds for stats in drafted)
        one_token = sum(s.decode_seconds for s in plain) / sum(s.tokens for s in plain)
        for phase in PHASES:
            spent = sum(stats.seconds.get(phase, 0.0) for stats in drafted) / rounds
            yield Figure(f"{setting.title}: {phase} a round, of a plain token", spent / one_token, "x")


def _speed(runs: list[Stats]) -> float:
    return sum(s.tokens for s in runs) / sum(s.decode_seconds for s in runs)
