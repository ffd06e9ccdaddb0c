"""Choosing trees: what was predicted against what was measured, the choice against every setting, and the lab
prompt that fares worst."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.smollm2 import smollm2_bundle
from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions
from hexgraft.host.lab.comparison import Transcript, transcribe
from hexgraft.host.lab.prompts import LAB_PROMPTS, LabPrompt
from hexgraft.host.measure.bench import bench
from hexgraft.host.measure.contest import Contest
from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.decision import Verdict, decide
from hexgraft.host.measure.latency import Plan
from hexgraft.host.measure.metered import Metered
from hexgraft.host.measure.probe import probe
from hexgraft.host.measure.profile import (
    FORMAT,
    LatencyProfile,
    Machine,
    ModelTimes,
    PassTime,
    Source,
    Spread,
)
from hexgraft.host.measure.setting import every_setting, maker, usable_drafters
from hexgraft.host.measure.shaped import ShapedSession
from hexgraft.host.measure.table import LatencyTable
from hexgraft.host.measure.trial import Bench
from hexgraft.host.measure.tune import Search
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import HexgraftError

TOKENS = 64
SHAPES = {"flat": (1.0, 1.02, 1.05, 1.1, 1.2), "steep": (1.0, 1.6, 2.1, 3.2, 5.5)}
WIDTHS = (1, 4, 8, 16, 32)


def figures() -> Iterator[Figure]:
    pair = tiny_pair()
    for shape in SHAPES:
        yield from slept(pair, shape)
    for precision in ("fp32", "w8a8"):
        smollm2 = smollm2_bundle(precision)
        codec = TextCodec(smollm2)

        def encode(text: str, codec: TextCodec = codec) -> list[int]:
            return codec.encode_chat([{"role": "user", "content": text}])

        yield from here(f"SmolLM2 {precision}, CPU", smollm2, "cpu", encode)
    try:
        yield from here("tiny pair, runner", pair, "runner", _bytes)
    except HexgraftError as error:
        print(f"(no runner: {error.message})", file=sys.stderr)


def slept(pair: Bundle, shape: str) -> Iterator[Figure]:
    """The tiny pair at the pace of a table, slept: 20 ms a row of the target, 2 ms one of the draft."""
    profile = _table(shape)
    assert profile.draft is not None
    target = ShapedSession(CpuSession(pair), LatencyTable(profile.target), time.sleep)
    draft = ShapedSession(CpuSession(pair, "draft"), LatencyTable(profile.draft), time.sleep)
    # Texts and trials need no pace of their own: they are counted, not timed.
    search = _search(pair, profile, CpuSession(pair), CpuSession(pair, "draft"), _bytes, LAB_PROMPTS[::10])
    search.run(["lookup", "levels"], search.sizes)
    meter = Metered(draft, keep=True)
    search.open_draft = lambda: meter
    verdict = _decide(search, target)
    yield from _agreement(f"{shape} table", search, verdict)
    grid = every_setting(["lookup", "levels"], search.sizes)
    quick = _search(pair, profile, CpuSession(pair), CpuSession(pair, "draft"), _bytes, LAB_PROMPTS[:1])
    fastest = max(quick.guess(setting).speed for setting in grid[::5])
    chosen = quick.run(["lookup", "levels"], quick.sizes)[0].speed
    yield Figure(f"{shape} table: the choice against a fifth of the grid", chosen / fastest, "x", ">= 0.97")


def here(name: str, bundle: Bundle, backend: str, encode: Callable[[str], list[int]]) -> Iterator[Figure]:
    """A bundle where it runs: measured, tuned, verified; and the lab's worst prompt by the measured table."""

    def opened(role: str) -> Session:
        return open_session(bundle, role, backend)

    profile = bench(bundle, opened, encode("one two three four"), lambda _: Plan(repeats=9), by="benchmarks")
    target = opened("target")
    draft = opened("draft") if bundle.draft is not None else None
    search = _search(bundle, profile, target, draft, encode, LAB_PROMPTS[::5])
    search.run(usable_drafters(search.make, search.open_draft), search.sizes)
    verdict = _decide(search, target)
    yield from _agreement(name, search, verdict)
    whole = _search(bundle, profile, target, draft, encode, LAB_PROMPTS)
    adapted = whole.adapted(whole.guess(verdict.fixed[verdict.place][0].setting))
    yield Figure(f"{name}: lab prompts kept to what pays", adapted.speedup, "x")
    yield Figure(f"{name}: the worst lab prompt against plain", whole.worst(adapted), "x time", "<= 1.05")


def _agreement(name: str, search: Search, verdict: Verdict) -> Iterator[Figure]:
    """Figures of the settings that were run."""
    yield Figure(f"{name}: plain decoding", verdict.plain.speed.median, "tok/s")
    # It has no trees: what it is off by is how much the machine changed between probe and run.
    changed = verdict.plain.speed.median / search.plain - 1
    yield Figure(f"{name}: plain decoding, faster than in the probe by", 100 * changed, "%")
    for guess, result in (verdict.fixed[verdict.place], verdict.kept[verdict.place]):
        yield Figure(f"{name}: {guess.title}, speed-up", result.ratio.median, "x")
        error = abs(guess.speedup / result.ratio.median - 1)
        yield Figure(f"{name}: {guess.title}, speed-up predicted off by", 100 * error, "%", "<= 10")
        error = abs(guess.speed / result.speed.median - 1)
        yield Figure(f"{name}: {guess.title}, tokens/s predicted off by", 100 * error, "%", "<= 10")


def _decide(search: Search, target: Session) -> Verdict:
    prompts = [transcript.prompt for transcript in search.bench.transcripts]
    tokens = sum(len(transcript.answer) for transcript in search.bench.transcripts)
    # Runs of milliseconds say nothing once.
    repeats = min(15, max(3, round(3 * search.plain / tokens)))
    contest = Contest(target, prompts, search.bench.options, repeats=repeats)
    probe(search, contest)
    guesses = search.ranking()
    return decide(search, contest, guesses[:2], [search.adapted(guess) for guess in guesses[:2]])


def _search(
    bundle: Bundle,
    profile: LatencyProfile,
    target: Session,
    draft: Session | None,
    encode: Callable[[str], list[int]],
    prompts: Sequence[LabPrompt],
) -> Search:
    stops = frozenset(bundle.manifest.tokenizer.stop_tokens)
    options = DecodeOptions(max_tokens=TOKENS, tree_size=1, stops=stops)
    texts: list[Transcript] = list(transcribe(target, prompts, encode, options))
    meter = Metered(draft, keep=True) if draft is not None else None

    def opened() -> Session:
        if meter is None:
            raise HexgraftError("there is no draft model")
        return meter

    tried = Bench(target.spec, texts, options, meter)
    return Search(tried, Costs.of(profile), maker(bundle, Sampling()), opened)


def _table(shape: str) -> LatencyProfile:
    def times(name: str, one: float) -> ModelTimes:
        pairs = zip(WIDTHS, SHAPES[shape], strict=True)
        passes = [PassTime(width, 0, Spread.single(one * factor)) for width, factor in pairs]
        return ModelTimes(name, passes, list(WIDTHS))

    source = Source("published", "2026-11-29", "made up for this benchmark")
    return LatencyProfile(
        FORMAT, source, Machine("a table"), "cpu", times("target", 0.02), times("draft", 0.002)
    )


def _bytes(text: str) -> list[int]:
    return list(text.encode())[:90]


def tiny_pair() -> Bundle:
    """The pair of the tests."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
    from pair import make_pair

    return make_pair(Path(tempfile.mkdtemp(prefix="hexgraft-tune-")))
