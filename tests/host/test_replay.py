"""Replay: the same session gives the same logits, another one figures, and cache damage is located."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuRows, CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.session import Visibility
from hexgraft.host.traces.cache_check import CacheCheck, Damage
from hexgraft.host.traces.replay import (
    Figures,
    Pair,
    Worst,
    decode_passes,
    measure,
    prefill_passes,
    replay,
    trace_passes,
)
from hexgraft.host.traces.replay_report import Recorded
from hexgraft.host.traces.trace import Judged, Recorder, Trace
from hexgraft.models.errors import UsageError

PROMPT = [5, 300, 17, 42, 9, 271, 33, 17, 42, 9]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def free(bundle: Bundle) -> CpuSession:
    return CpuSession(bundle)


@pytest.fixture(scope="module")
def trace(bundle: Bundle, free: CpuSession) -> Trace:
    drafter = make_drafter("levels", bundle, lambda: CpuSession(bundle, "draft"))
    decoder = Decoder(free, drafter, DecodeOptions(60, 16, margins=True, logprobs=5))
    recorder = Recorder(str)
    trace = Trace(recorder.header(bundle, decoder, PROMPT, whole=False))
    decoder.begin(PROMPT)
    trace.rounds = [recorder.round(current) for current in decoder.rounds()]
    trace.end = recorder.end(decoder.stats, "max-tokens")
    return trace


def figures(pairs: Sequence[Pair]) -> Figures:
    found = Figures()
    for pair in pairs:
        found.add(measure(pair))
    return found


def test_the_same_session_gives_the_same_logits(bundle: Bundle, free: CpuSession, trace: Trace) -> None:
    again = CpuSession(bundle, share=free)
    pairs = list(replay(trace_passes(trace, 32), free, again))
    found = figures(pairs)
    assert found.rows == len(PROMPT) - 1 + sum(len(current.tokens) for current in trace.rounds)
    assert (found.max_error, found.kl, found.agreement, found.sqnr_db) == (0, 0, 1, math.inf)
    # What the trace recorded is what the replay finds, to the last bit.
    logits = {(pair.forced.round, pair.row): pair.other for pair in pairs}
    for current in trace.rounds:
        for node, judged in zip(current.accepted, current.judged, strict=True):
            row = logits[current.number, node]
            assert judged.logit == row[judged.token]
            assert [logit for _, logit in judged.top] == [row[token] for token, _ in judged.top]
            assert row[judged.token] == row.max()


def test_forced_tokens_are_followed_by_what_came_next(trace: Trace) -> None:
    known: dict[int, int] = {}
    for forced in trace_passes(trace, 8 if max(len(r.tokens) for r in trace.rounds) <= 8 else 32):
        for row in forced.accepted:
            follow = forced.follows[row]
            assert follow is not None
            known[forced.positions[row]] = follow
    tokens = trace.tokens
    assert [known[place] for place in range(len(tokens) - 1)] == tokens[1:]


def test_other_widths_differ_by_rounding_only(bundle: Bundle, free: CpuSession, trace: Trace) -> None:
    padded = CpuSession(bundle, widths=[32], whole=True, share=free)
    found = figures(list(replay(trace_passes(trace, 32), free, padded)))
    assert found.max_error < 1e-3
    assert found.agreement == 1
    assert found.sqnr_db > 90


def test_plain_decoding_of_a_text_equals_its_prefill(bundle: Bundle, free: CpuSession, trace: Trace) -> None:
    """The passes a parity gate makes of a text: 500 positions need neither a trace nor equal choices."""
    text = np.random.default_rng(1).integers(3, 320, 120).tolist()
    other = CpuSession(bundle, widths=[8], share=free)
    passes = [*prefill_passes(text, 40, 8), *decode_passes(text, 40)]
    assert [forced.phase for forced in passes] == ["prefill"] * 5 + ["decode"] * 79
    found = figures(list(replay(passes, free, other)))
    assert (found.rows, found.forced) == (119, 119)
    assert found.perplexity[0] == pytest.approx(found.perplexity[1], rel=1e-4)
    assert found.perplexity[0] > 2


def test_trees_wider_than_a_session_are_refused(trace: Trace) -> None:
    with pytest.raises(UsageError, match=r"trees of 16 nodes, the sessions run at most 8"):
        list(trace_passes(trace, 8))


def test_a_session_is_not_compared_with_itself(free: CpuSession, trace: Trace) -> None:
    with pytest.raises(UsageError, match="cannot be compared with itself"):
        list(replay(trace_passes(trace, 32), free, free))


# ------------------------------------------------------------------- figures


def pair_of(reference: Sequence[float], other: Sequence[float]) -> Pair:
    forced = next(decode_passes([0, 1], 0))
    return Pair(forced, 0, np.array(reference, np.float32), np.array(other, np.float32))


def test_figures_of_known_rows() -> None:
    row = measure(pair_of(np.log([0.5, 0.5]).tolist(), np.log([0.25, 0.75]).tolist()))
    assert row.kl == pytest.approx(0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75), abs=1e-6)
    assert row.error == pytest.approx(math.log(2), abs=1e-6)
    assert row.best == (0, 1)
    found = Figures()
    found.add(row)
    noise = math.log(2) ** 2 + math.log(1.5) ** 2
    assert found.sqnr_db == pytest.approx(10 * math.log10(2 * math.log(2) ** 2 / noise), abs=1e-4)
    assert found.perplexity == (pytest.approx(2), pytest.approx(1 / 0.75))
    assert found.agreement == 0


def test_rows_that_are_not_finite_are_counted_apart() -> None:
    found, worst = Figures(), Worst(2)
    for other in ([1.0, 2.0], [math.nan, 2.0], [1.5, 2.0]):
        pair = pair_of([1.0, 2.0], other)
        found.add(measure(pair))
        worst.add(pair, measure(pair))
    assert (found.rows, found.not_finite, found.agreed) == (3, 1, 2)
    assert found.max_error == 0.5
    assert found.as_dict()["kl"] > 0
    assert [math.isfinite(row.kl) for _, _, row in worst.rows()] == [False, True]


@pytest.mark.parametrize("other", [[math.nan, 2.0], [math.inf, 2.0]])
def test_a_recorded_logit_that_is_no_number_now_is_no_small_error(other: list[float]) -> None:
    recorded = Recorded()
    recorded.add(Judged(0, 1.0, 1.7, [(0, 1.0), (1, 0.5)]), pair_of([1.0, 2.0], other))
    assert recorded.max_error == math.inf
    assert recorded.as_dict() == {"rows": 1, "agreed": 1, "max_error": None}


# -------------------------------------------------------------- cache damage


class Damaged(CpuSession):
    """Does something to its cache once `context` tokens are committed."""

    def __init__(self, bundle: Bundle, share: CpuSession, context: int, fault: str) -> None:
        super().__init__(bundle, share=share)
        self.context, self.fault = context, fault

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        rows = list(rows)
        if self.fault == "rows" and slots[0] == self.context and len(rows) > 1:
            rows[1] = rows[0]
        super().store(rows, slots)

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> CpuRows:
        if self.fault == "sign" and positions[0] == self.context:
            saved = self.save(self.context)
            saved.keys[1, 1, 3, 7] *= -1
            self.restore(saved)
        return super().forward(tokens, positions, visible)


def damage_of(bundle: Bundle, free: CpuSession, trace: Trace, fault: str, context: int) -> Damage | None:
    other = Damaged(bundle, free, context, fault)
    reference = CpuSession(bundle, share=free)
    check = CacheCheck(reference, other)
    for _ in replay(trace_passes(trace, 32), reference, other, check):
        pass
    return check.damage


def test_a_flipped_sign_is_located_to_its_round_and_slot(
    bundle: Bundle, free: CpuSession, trace: Trace
) -> None:
    hit = trace.rounds[len(trace.rounds) // 2]
    damage = damage_of(bundle, free, trace, "sign", hit.context)
    assert damage is not None
    assert (damage.kind, damage.session, damage.cells) == ("changed", "other", 1)
    assert (damage.round, damage.layer, damage.slot) == (hit.number, 1, 7)
    assert (damage.part, damage.head, damage.dim) == ("key", 1, 3)
    assert damage.found == -damage.expected != 0


def test_a_wrongly_grafted_row_is_located(bundle: Bundle, free: CpuSession, trace: Trace) -> None:
    hit = next(current for current in trace.rounds[5:] if len(current.accepted) > 1)
    damage = damage_of(bundle, free, trace, "rows", hit.context)
    assert damage is not None
    assert damage.kind == "differs"
    assert (damage.round, damage.layer, damage.slot) == (hit.number, 0, hit.context + 1)


def test_whole_caches_show_no_damage(bundle: Bundle, free: CpuSession, trace: Trace) -> None:
    assert damage_of(bundle, free, trace, "none", 0) is None
    padded, reference = CpuSession(bundle, widths=[32], whole=True, share=free), free
    check = CacheCheck(reference, padded)
    assert sum(1 for _ in replay(trace_passes(trace, 32), reference, padded, check)) > 100
    assert check.damage is None
