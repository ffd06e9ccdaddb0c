"""Two traces: identical, parted by rounding, or really different; and those that cannot be compared."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.randomness import gumbels
from hexgraft.host.sampling import Sampling
from hexgraft.host.traces.compare import (
    DIFFERENT,
    IDENTICAL,
    NOISE_FLOAT32,
    NOISE_OTHER,
    NOISE_ROUNDED,
    TIE,
    candidates,
    compare,
    default_noise,
)
from hexgraft.host.traces.trace import Judged, Recorder, Trace, TraceRound
from hexgraft.models.errors import UsageError

PROMPT = [5, 300, 17, 42, 9, 271, 33, 17, 42, 9]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def target(bundle: Bundle) -> CpuSession:
    return CpuSession(bundle)


def record(
    bundle: Bundle,
    target: CpuSession,
    drafter: str,
    *,
    prompt: list[int] = PROMPT,
    tokens: int = 40,
    size: int = 16,
    sampling: Sampling | None = None,
) -> Trace:
    options = DecodeOptions(tokens, size, logprobs=5, sampling=sampling or Sampling())
    decoder = Decoder(target, make_drafter(drafter, bundle, lambda: CpuSession(bundle, "draft")), options)
    recorder = Recorder(str)
    trace = Trace(recorder.header(bundle, decoder, prompt, whole=False))
    decoder.begin(prompt)
    trace.rounds = [recorder.round(current) for current in decoder.rounds()]
    trace.end = recorder.end(decoder.stats, trace.rounds[-1].finish)
    return trace


def ended(bundle: Bundle, target: CpuSession, finish: str) -> Trace:
    """A run of 17 tokens that ended in some way."""
    trace = record(bundle, target, "levels", tokens=17)
    assert trace.end is not None
    trace.end.finish = finish
    return trace


def test_noise_is_what_roundings_do(plain: Trace) -> None:
    def header(backend: str, precision: str, joined: bool) -> Trace:
        changed = msgspec.structs.replace(plain.header, backend=backend, precision=precision, joined=joined)
        return Trace(changed)

    assert (plain.header.precision, plain.header.joined) == ("fp32", False)
    for first, second, expected in (
        (("cpu", "fp32", False), ("device", "fp32", False), NOISE_FLOAT32),
        (("cpu", "fp32", True), ("runner", "fp32", True), NOISE_FLOAT32),
        (("cpu", "w8", True), ("cpu", "w8", True), NOISE_FLOAT32),
        (("cpu", "w4a8", False), ("runner", "w4a8", False), NOISE_FLOAT32),
        (("device", "w4a8", False), ("device", "w4a8", False), NOISE_FLOAT32),
        (("cpu", "w4a8", False), ("device", "w4a8", False), NOISE_ROUNDED),
        (("cpu", "w4h4a8", True), ("cpu", "w4h4a8", True), NOISE_ROUNDED),
        (("cpu", "fp32", False), ("device-htp", "fp32", False), NOISE_OTHER),
    ):
        assert default_noise(header(*first), header(*second)) == expected


@pytest.fixture(scope="module")
def plain(bundle: Bundle, target: CpuSession) -> Trace:
    return record(bundle, target, "none", size=1)


@pytest.mark.parametrize(("drafter", "size"), [("levels", 16), ("chain", 4), ("lookup", 8)])
def test_other_drafters_and_sizes_are_identical(
    bundle: Bundle, target: CpuSession, plain: Trace, drafter: str, size: int
) -> None:
    trees = record(bundle, target, drafter, size=size)
    found = compare(plain, trees)
    assert found.verdict == IDENTICAL
    assert found.common == 40
    assert found.places is None


def test_a_run_that_was_given_fewer_tokens_is_identical_as_far_as_it_goes(
    bundle: Bundle, target: CpuSession, plain: Trace
) -> None:
    short = record(bundle, target, "levels", tokens=17)
    found = compare(plain, short)
    assert (found.verdict, found.common, found.emitted) == (IDENTICAL, 17, (40, 17))
    assert "then one run ends (max-tokens)" in found.reason


@pytest.mark.parametrize("finish", ["interrupted", "lost", "failed"])
def test_a_run_that_was_cut_short_is_identical_as_far_as_it_goes(
    bundle: Bundle, target: CpuSession, plain: Trace, finish: str
) -> None:
    short = ended(bundle, target, finish)
    assert compare(plain, short).verdict == compare(short, plain).verdict == IDENTICAL
    assert f"then one run ends ({finish})" in compare(plain, short).reason


def test_a_full_context_is_an_end_only_where_both_have_it(
    bundle: Bundle, target: CpuSession, plain: Trace
) -> None:
    short = ended(bundle, target, "length")
    assert compare(plain, short).verdict == DIFFERENT
    short.header = msgspec.structs.replace(short.header, capacity=short.header.capacity // 2)
    assert compare(plain, short).verdict == IDENTICAL


def test_a_text_that_ended_by_itself_is_a_difference(
    bundle: Bundle, target: CpuSession, plain: Trace
) -> None:
    stopped = ended(bundle, target, "stop")
    found = compare(stopped, plain)
    assert found.verdict == DIFFERENT
    assert found.places is not None
    assert (found.places[0].token, found.places[0].finish) == (None, "stop")
    assert found.places[1].token == plain.emitted[17]


# ------------------------------------------------------- made-up differences


def choose(trace: Trace, index: int, token: int, logits: dict[int, float]) -> Trace:
    """A copy of a plain trace cut after its token `index`, which is made `token`, with those candidates."""
    rounds = [msgspec.structs.replace(r) for r in trace.rounds[: index + 1]]
    top = sorted(logits.items(), key=lambda item: (-item[1], item[0]))
    judged = Judged(token, logits.get(token), float(np.logaddexp.reduce([*logits.values()])), list(top))
    rounds[-1] = msgspec.structs.replace(
        rounds[-1], emitted=[token], judged=[judged], margins=[top[0][1] - top[1][1]]
    )
    return Trace(trace.header, rounds)


def test_a_near_tie_is_called_one(plain: Trace) -> None:
    a = choose(plain, 9, 50, {50: 8.0002, 60: 8.0, 70: 1.0})
    b = choose(plain, 9, 60, {50: 8.0, 60: 8.0003, 70: 1.0})
    found = compare(a, b)
    assert found.verdict == TIE
    assert found.common == 9
    assert found.swing == pytest.approx(5e-4, rel=1e-6)
    assert found.places is not None
    first, second = found.places
    assert (first.round, first.node, first.token) == (10, 0, 50)
    assert (second.round, second.node, second.token) == (10, 0, 60)
    assert first.lead == pytest.approx(2e-4)
    assert second.lead == pytest.approx(3e-4)
    assert compare(a, b, noise=4e-4).verdict == DIFFERENT
    assert compare(a, b, noise=6e-4).verdict == TIE


def test_disagreeing_logits_are_a_difference(plain: Trace) -> None:
    a = choose(plain, 9, 50, {50: 9.0, 60: 8.0})
    b = choose(plain, 9, 60, {50: 8.0, 60: 8.5})
    found = compare(a, b)
    assert found.verdict == DIFFERENT
    assert found.swing == pytest.approx(1.5)
    assert "disagree by 1.5" in found.reason


def test_equal_logits_and_another_choice_are_a_difference(plain: Trace) -> None:
    """A walk that takes the second best: the logits agree, so it is not the arithmetic's fault."""
    a = choose(plain, 9, 50, {50: 9.0, 60: 8.0})
    b = choose(plain, 9, 60, {50: 9.0, 60: 8.0})
    found = compare(a, b)
    assert found.verdict == DIFFERENT
    assert found.swing == 0
    assert "no rounding explains that" in found.reason


def test_a_token_that_was_not_recorded_leaves_the_question_open(plain: Trace) -> None:
    a = choose(plain, 9, 50, {50: 9.0, 60: 8.0})
    b = choose(plain, 9, 99, {99: 9.0, 60: 8.0})
    found = compare(a, b)
    assert found.verdict == DIFFERENT
    assert "not among the 2 best" in found.reason


def test_a_draw_is_a_tie_by_its_noise_not_by_its_logits(bundle: Bundle, target: CpuSession) -> None:
    """At temperature 1 the race is logit + noise: far apart in logits, and yet as close as can be."""
    drawn = record(bundle, target, "none", size=1, sampling=Sampling(temperature=1.0, seed=3))
    noise = gumbels(3, len(PROMPT) + 9, np.array([50, 60]))
    a = choose(drawn, 9, 50, {50: 8.0, 60: 8.0 + float(noise[0] - noise[1]) - 1e-4})
    b = choose(drawn, 9, 60, {50: 8.0, 60: 8.0 + float(noise[0] - noise[1]) + 1e-4})
    found = compare(a, b)
    assert found.verdict == TIE
    assert found.places is not None
    assert found.places[0].lead == pytest.approx(1e-4, rel=1e-3)
    wrong = choose(drawn, 9, 60, {50: 8.0, 60: 7.0 + float(noise[0] - noise[1])})
    assert compare(a, wrong).verdict == DIFFERENT


def winner(tokens: list[int], gap: float) -> int:
    """A seed whose noise lifts the second of two tokens over the first by more than `gap` logits."""
    place = len(PROMPT) + 9
    return next(s for s in range(999) if -np.subtract(*gumbels(s, place, np.array(tokens))) > gap)


@pytest.mark.parametrize(
    ("filters", "logits", "border"),
    [
        ({"top_p": 0.731}, {50: 1.0, 60: 0.0}, True),
        ({"top_p": 0.8}, {50: 1.0, 60: 0.0}, False),
        ({"min_p": math.exp(-1)}, {50: 1.0, 60: 0.0}, True),
        ({"min_p": 0.3}, {50: 1.0, 60: 0.0}, False),
        ({"top_k": 1}, {50: 1.00001, 60: 1.0}, True),
        ({"top_k": 1}, {50: 1.1, 60: 1.0}, False),
        ({"top_k": 2}, {50: 1.0, 60: 0.0}, False),
        ({"top_k": 2}, {50: 1.0, 70: 0.00001, 60: 0.0}, True),
    ],
)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_token_at_the_border_of_a_filter_is_a_tie(
    bundle: Bundle, target: CpuSession, filters: dict[str, float], logits: dict[int, float], border: bool,
    temperature: float,
) -> None:  # fmt: skip
    """One run draws the token that wins the race; the other's filter drops it by a hair, or a fault does."""
    seed = winner([50, 60], 2.0)
    drawn = record(
        bundle,
        target,
        "none",
        size=1,
        sampling=Sampling(temperature, seed=seed, **filters),  # type: ignore[arg-type]
    )
    logits = {token: temperature * logit for token, logit in logits.items()}
    noisy = {token: logit + 1e-5 * (token == 60) for token, logit in logits.items()}
    a, b = choose(drawn, 9, 60, noisy), choose(drawn, 9, 50, logits)
    for found in (compare(a, b), compare(b, a)):
        assert found.verdict == (TIE if border else DIFFERENT)
        assert ("at the border of top-k, top-p or min-p" in found.reason) == border


def test_penalties_take_part_in_the_race(bundle: Bundle, target: CpuSession) -> None:
    drawn = record(bundle, target, "none", size=1, sampling=Sampling(repetition=2.0))
    seen = PROMPT[0]
    a = choose(drawn, 9, seen, {seen: 8.0002, 60: 4.0})
    b = choose(drawn, 9, 60, {seen: 8.0, 60: 4.0003})
    found = compare(a, b)
    assert 60 not in [*PROMPT, *drawn.emitted[:9]]
    assert found.verdict == TIE


def test_candidates_have_probabilities() -> None:
    judged = Judged(4, 1.0, math.log(4), [(4, math.log(3)), (5, 0.0), (6, None)])
    assert candidates(judged) == [(4, math.log(3), pytest.approx(0.75)), (5, 0.0, 0.25), (6, None, None)]
    assert candidates(None) == []


# ------------------------------------------------------------------- refusals


def test_traces_of_other_questions_are_refused(
    bundle: Bundle, target: CpuSession, plain: Trace, tmp_path: Path
) -> None:
    other = record(bundle, target, "none", prompt=[*PROMPT[:4], 7, 9], size=1)
    with pytest.raises(UsageError, match="different prompts: 10 and 6 tokens, which part at token 4"):
        compare(plain, other)
    warm = record(bundle, target, "none", size=1, sampling=Sampling(temperature=1.0))
    with pytest.raises(UsageError, match="draw tokens differently"):
        compare(plain, warm)
    foreign = Trace(msgspec.structs.replace(plain.header, bundle="0" * 64), plain.rounds)
    with pytest.raises(UsageError, match="different bundles"):
        compare(plain, foreign)
    residual = Trace(msgspec.structs.replace(plain.header, verifier="sequoia"), plain.rounds)
    with pytest.raises(UsageError, match="verifiers match and sequoia"):
        compare(plain, residual)


def test_an_empty_trace_is_the_beginning_of_every_other(plain: Trace) -> None:
    nothing: list[TraceRound] = []
    found = compare(Trace(plain.header, nothing), plain)
    assert (found.verdict, found.common) == (IDENTICAL, 0)
    assert "cut off" in found.reason
