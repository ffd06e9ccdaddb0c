"""Traces: what a run did comes back from the file, cut ones as far as they go, damaged ones not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuRows, CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.lookup import Lookup
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.session import Visibility
from hexgraft.host.stats import Stats
from hexgraft.host.text import TextCodec
from hexgraft.host.traces.trace import Recorder, TraceError, TraceRound, tokens_hash
from hexgraft.host.traces.trace_file import TraceWriter, read_trace
from hexgraft.host.tree import chain
from hexgraft.models.errors import UsageError

PROMPT = [5, 300, 17, 42, 9, 271, 33, 17, 42, 9]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


class Run:
    """A run and the file of its trace."""

    def __init__(self, bundle: Bundle, file: Path, drafter: str, **options: Any) -> None:
        made = make_drafter(drafter, bundle, lambda: CpuSession(bundle, "draft"))
        self.decoder = Decoder(CpuSession(bundle), made, DecodeOptions(40, 8, logprobs=5, **options))
        self.rounds: list[Round] = []
        self.file = file
        recorder = Recorder(TextCodec(bundle).token)
        with TraceWriter(file) as writer:
            writer.write(recorder.header(bundle, self.decoder, PROMPT, whole=False))
            self.decoder.begin(PROMPT)
            for current in self.decoder.rounds():
                self.rounds.append(current)
                writer.write(recorder.round(current))
            writer.write(recorder.end(self.decoder.stats, self.rounds[-1].finish))


@pytest.fixture(scope="module")
def run(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(bundle, tmp_path_factory.mktemp("trace") / "run.jsonl", "levels", margins=True)


def test_a_trace_tells_what_the_run_did(run: Run, bundle: Bundle) -> None:
    trace = read_trace(run.file)
    assert trace.tokens == run.decoder.tokens
    assert trace.header.bundle == bundle.digest
    assert (trace.header.drafter, trace.header.verifier, trace.header.tree_size) == ("levels", "match", 8)
    assert trace.finish == "max-tokens"
    for recorded, current in zip(trace.rounds, run.rounds, strict=True):
        again = recorded.round()
        assert again.tree.tokens.tolist() == current.tree.tokens.tolist()
        assert again.tree.parents.tolist() == current.tree.parents.tolist()
        assert again.tree.sources == current.tree.sources
        assert again.tree.probabilities.tolist() == current.tree.probabilities.tolist()
        assert (again.accepted, again.tokens, again.context) == (
            current.accepted,
            current.tokens,
            current.context,
        )
        assert (again.margins, again.width, again.finish) == (current.margins, current.width, current.finish)
    assert trace.end is not None
    assert trace.end.stats["rounds"] == len(run.rounds)
    assert trace.end.sha256 == tokens_hash(run.decoder.tokens[len(PROMPT) :])


def test_figures_of_the_rounds_are_those_of_the_run(run: Run) -> None:
    ours, theirs = read_trace(run.file).stats(), run.decoder.stats
    for name in ("prompt_tokens", "rounds", "tokens", "nodes", "by_depth", "by_rank", "degraded"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_candidates_hold_the_logits_of_the_walk(run: Run) -> None:
    for recorded, current in zip(read_trace(run.file).rounds, run.rounds, strict=True):
        assert [judged.token for judged in recorded.judged] == list(current.tokens)
        for judged, margin in zip(recorded.judged, current.margins, strict=True):
            (first, best), (_, second) = judged.top[:2]
            assert best is not None
            assert second is not None
            assert first == judged.token
            assert judged.logit == best
            assert best - second == pytest.approx(margin, abs=1e-5)


def test_margins_come_from_the_candidates_too(bundle: Bundle, run: Run, tmp_path: Path) -> None:
    other = read_trace(Run(bundle, tmp_path / "run.jsonl", "levels").file)
    assert [r.margins for r in other.rounds] == [r.margins for r in read_trace(run.file).rounds]


def test_unknown_probabilities_are_null() -> None:
    tree = chain(9, [4, 5], "lookup")
    line = msgspec.json.encode(Recorder(str).round(Round(tree, (0, 1), (4, 8), 9, None, False)))
    assert json.loads(line)["probabilities"] == [1.0, None, None]
    again = msgspec.json.decode(line, type=TraceRound)
    assert np.isnan(again.tree().probabilities).tolist() == [False, True, True]
    assert again.margins == again.judged == []


def test_every_token_is_shown_once(run: Run) -> None:
    trace = read_trace(run.file)
    shown = trace.texts()
    assert sum(len(r.texts) for r in (trace.header, *trace.rounds)) == len(shown)
    mentioned = {*trace.tokens, *(t for r in trace.rounds for t in r.tokens)}
    mentioned |= {t for r in trace.rounds for judged in r.judged for t, _ in judged.top}
    assert set(shown) == mentioned


def test_a_trace_names_no_path(run: Run, bundle: Bundle) -> None:
    text = run.file.read_text()
    assert str(bundle.path) not in text
    assert str(run.file.parent) not in text


class Overflowing(CpuSession):
    """Its logits are not finite at the first drafted node of every tree."""

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> CpuRows:
        rows = super().forward(tokens, positions, visible)
        if rows.count > 1:
            self._staging.at(rows.width).logits[0, 1] = np.nan
        return rows


def test_degraded_rounds_are_recorded_as_such(bundle: Bundle, run: Run, tmp_path: Path) -> None:
    drafter = make_drafter("chain", bundle, lambda: CpuSession(bundle, "draft"))
    decoder = Decoder(Overflowing(bundle), drafter, DecodeOptions(20, 4, logprobs=5))
    recorder, file = Recorder(str), tmp_path / "degraded.jsonl"
    with TraceWriter(file) as writer:
        writer.write(recorder.header(bundle, decoder, PROMPT, whole=False))
        decoder.begin(PROMPT)
        for current in decoder.rounds():
            writer.write(recorder.round(current))
    trace = read_trace(file)
    assert trace.emitted == run.decoder.tokens[len(PROMPT) :][:20]
    degraded = [current for current in trace.rounds if current.degraded]
    assert degraded
    assert all(len(current.accepted) == 1 for current in degraded)
    assert trace.stats().by_depth == decoder.stats.by_depth


# ------------------------------------------------------------ cut and damaged


@pytest.mark.parametrize("cut", [1, 40, 2000])
def test_a_cut_trace_is_read_as_far_as_it_goes(run: Run, tmp_path: Path, cut: int) -> None:
    whole = run.file.read_bytes()
    file = tmp_path / "cut.jsonl"
    file.write_bytes(whole[:-cut])
    trace = read_trace(file)
    assert trace.end is None
    assert trace.finish == "cut off"
    assert 0 < len(trace.rounds) <= len(run.rounds)
    assert trace.emitted == run.decoder.tokens[len(PROMPT) :][: len(trace.emitted)]


def test_rounds_reach_the_file_as_they_happen(bundle: Bundle, tmp_path: Path) -> None:
    decoder = Decoder(CpuSession(bundle), Lookup(), DecodeOptions(20, 8))
    decoder.begin(PROMPT)
    recorder, file = Recorder(str), tmp_path / "run.jsonl"
    with TraceWriter(file) as writer:
        writer.write(recorder.header(bundle, decoder, PROMPT, whole=False))
        assert read_trace(file).rounds == []
        writer.write(recorder.round(decoder.step()))
        assert len(read_trace(file).rounds) == 1


def edited(run: Run, file: Path, line: int, **changes: Any) -> Path:
    lines = run.file.read_text().splitlines()
    record = json.loads(lines[line]) | changes
    lines[line] = json.dumps({name: value for name, value in record.items() if value != "gone"})
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize(
    ("line", "changes", "words"),
    [
        (0, {"format": 1}, "is a trace of format 1, this hexgraft reads format 2"),
        (0, {"record": "round"}, "is not a trace"),
        (0, {"prompt": []}, "line 1: the prompt is empty"),
        (0, {"prompt": [1, 999]}, "line 1: the prompt is empty or not of this vocabulary"),
        (0, {"extra": 1}, "unknown field `extra`"),
        (0, {"sampling": {"temperature": -1}}, "--temperature -1.0 is not 0 or more"),
        (1, {"context": 3}, "line 2: round 1 at position 3 does not follow"),
        (1, {"number": 7}, "line 2: round 7"),
        (1, {"sources": ["root"]}, "line 2: tokens, parents, probabilities and sources differ in number"),
        (1, {"parents": [-1, 5, 0, 0, 0, 0, 0, 0]}, "line 2: the nodes are no tree"),
        (1, {"accepted": [0, 99]}, "line 2: the accepted nodes are not in the tree"),
        (1, {"emitted": []}, "line 2: 0 tokens emitted"),
        (1, {"margins": [1.0] * 20}, "line 2: margins or candidates differ"),
        (1, {"width": "gone"}, "missing required field `width`"),
        (1, {"width": -1}, "line 2: a pass -1 rows wide has no room for "),
        (1, {"width": 1}, "line 2: a pass 1 rows wide has no room for "),
        (1, {"probabilities": [2.0] + [0.5] * 7}, "line 2: a probability is not in 0..1"),
        (1, {"probabilities": [None] + [-0.5] * 7}, "line 2: a probability is not in 0..1"),
        (1, {"seconds": {"target": -5.0}}, "line 2: a phase took less than no time"),
        (0, {"capacity": 1}, "line 1: a prompt of "),
        (0, {"widths": [0, 8]}, "line 1: the widths [0, 8] are not positive numbers"),
        (0, {"tree_size": 0}, "line 1: tree_size 0 is not positive"),
        (0, {"tree_depth": -1}, "line 1: tree_depth -1 is not positive"),
        (0, {"max_tokens": -3}, "line 1: max_tokens -3 is not positive"),
        (0, {"stops": [999]}, "line 1: a stop token is outside the vocabulary of 320"),
        (-1, {"tokens": -1}, "do not hold the tokens its end record has the hash of"),
        (2, {"record": "header"}, "line 3"),
        (-1, {"sha256": "0" * 64}, "do not hold the tokens its end record has the hash of"),
    ],
)
def test_damaged_traces_are_refused(
    run: Run, tmp_path: Path, line: int, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(TraceError) as raised:
        read_trace(edited(run, tmp_path / "damaged.jsonl", line, **changes))
    assert words in raised.value.message


def test_other_files_are_refused(run: Run, tmp_path: Path) -> None:
    for content in (b"", b"\x00\xff\n", b"[1, 2]\n", b"hello\n", b'{"record": "header"}'):
        file = tmp_path / "other"
        file.write_bytes(content)
        with pytest.raises(TraceError, match="is not a trace"):
            read_trace(file)
    with pytest.raises(TraceError, match="cannot read the trace"):
        read_trace(tmp_path / "missing")
    doubled = tmp_path / "doubled"
    doubled.write_bytes(run.file.read_bytes() * 2)
    with pytest.raises(TraceError, match="more after the end record"):
        read_trace(doubled)


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the trace") as raised:
        TraceWriter(tmp_path / "no" / "run.jsonl")
    assert raised.value.hint is not None
    with pytest.raises(TraceError, match="cannot read the trace") as unread:
        read_trace(tmp_path / "no.jsonl")
    assert unread.value.hint is not None


def test_a_candidate_outside_the_vocabulary_is_refused(run: Run, tmp_path: Path) -> None:
    judged = json.loads(run.file.read_text().splitlines()[1])["judged"]
    judged[0]["top"][-1][0] = 320
    with pytest.raises(TraceError, match="a token is outside the vocabulary of 320"):
        read_trace(edited(run, tmp_path / "damaged.jsonl", 1, judged=judged))


def test_a_negative_margin_is_refused(run: Run, tmp_path: Path) -> None:
    margins = json.loads(run.file.read_text().splitlines()[1])["margins"]
    damaged = edited(run, tmp_path / "damaged.jsonl", 1, margins=[-1.0] * len(margins))
    with pytest.raises(TraceError, match="line 2: a margin is negative"):
        read_trace(damaged)


def test_only_a_trace_is_written_over(run: Run, tmp_path: Path) -> None:
    """A prompt's file given to --trace by mistake stays what it was."""
    letter, trace, empty = tmp_path / "letter.txt", tmp_path / "old.jsonl", tmp_path / "empty"
    letter.write_text("Dear sir")
    with pytest.raises(UsageError, match="exists already and is no trace"):
        TraceWriter(letter)
    assert letter.read_text() == "Dear sir"
    trace.write_bytes(run.file.read_bytes())
    empty.touch()
    for file in (trace, empty):
        with TraceWriter(file):
            assert file.read_bytes() == b""


def test_an_unfinished_run_has_an_end_of_its_own(tmp_path: Path) -> None:
    assert Recorder(str).end(Stats(), "interrupted").finish == "interrupted"
