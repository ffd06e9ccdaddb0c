"""The commands around traces: run --trace, tree and compare, with their words and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import error_of, hexgraft, last_error_of, spawn

from hexgraft.host.traces.trace import Record
from hexgraft.host.traces.trace_file import TraceWriter, read_trace
from hexgraft.models.errors import INTERRUPTED

TEXT = "the quick brown fox and the quick brown dog and the quick"


def test_run_records_what_it_prints(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    done = hexgraft(
        "run", bundle, "-p", TEXT, "--raw", "--max-tokens", 30, "--trace", file, "--json",
        "--draft-option", "top_k=3",
    )  # fmt: skip
    trace = read_trace(file)
    answer = json.loads(done.stdout)
    assert trace.emitted == answer["tokens"]
    assert "logprobs" not in answer
    assert trace.header.knobs == ["top_k=3"]
    assert all(len(judged.top) == 5 for current in trace.rounds for judged in current.judged)
    assert trace.end is not None
    assert trace.end.finish == answer["finish"]


def test_an_interrupted_run_keeps_its_trace(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def at_once() -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr("hexgraft.host.cli.run.interruptible", at_once)
    file = tmp_path / "run.jsonl"
    done = hexgraft("run", bundle, "-p", TEXT, "--raw", "--trace", file)
    assert done.exit_code == INTERRUPTED
    trace = read_trace(file)
    assert trace.finish == "interrupted"
    assert len(trace.rounds) == 1


def test_a_full_disk_ends_the_trace_and_not_the_run(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = TraceWriter.write, list[Record]()

    def write_some(writer: TraceWriter, record: Record) -> None:
        if len(written) == 4:
            writer._file.close()
            writer._file = Path("/dev/full").open("wb")  # noqa: SIM115
        written.append(record)
        write(writer, record)

    monkeypatch.setattr(TraceWriter, "write", write_some)
    file = tmp_path / "run.jsonl"
    words = ("-p", TEXT, "--raw", "--max-tokens", "30", "--plain", "--trace", file, "--json")
    done = hexgraft("run", bundle, *words)
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert (len(answer["tokens"]), answer["finish"]) == (30, "max-tokens")
    message, hint = last_error_of(done)
    assert message == f"the trace {file} ends early: No space left on device"
    assert hint == "free some space, or choose another place for --trace"
    trace = read_trace(file)
    assert trace.end is None
    assert trace.emitted == answer["tokens"][:3]
    assert len(written) == 5, "it is not tried again"


def test_run_refuses_a_trace_it_cannot_write(bundle: Path, tmp_path: Path) -> None:
    done = hexgraft("run", bundle, "-p", TEXT, "--raw", "--trace", tmp_path / "no" / "run.jsonl")
    assert "cannot write the trace" in error_of(done)[0]


def test_one_run_at_a_time_writes_a_trace(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    words = ("run", bundle, "-p", TEXT, "--raw", "--max-tokens", 5, "--trace", file)
    assert hexgraft(*words).exit_code == 0
    header, first = read_trace(file).header, file.read_bytes().splitlines(keepends=True)[0]
    with TraceWriter(file) as writer:
        writer.write(header)
        done = hexgraft(*words)
    assert error_of(done)[0] == f"another run is writing the trace {file}"
    assert file.read_bytes() == first, "what the other run wrote is untouched"
    assert hexgraft(*words).exit_code == 0
    assert read_trace(file).end is not None


def test_a_trace_may_go_to_a_pipe(bundle: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = ("run", bundle, "-p", TEXT, "--raw", "--max-tokens", "5", "--trace", pipe)
    with spawn(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        records = [json.loads(line)["record"] for line in pipe.read_bytes().splitlines()]
        assert process.wait(timeout=300) == 0
    assert (records[0], records[-1]) == ("header", "end")


def test_draws_record_more_candidates(traces: dict[str, Path]) -> None:
    warm = read_trace(traces["warm"])
    assert all(len(judged.top) == 20 for current in warm.rounds for judged in current.judged)


@pytest.mark.parametrize("asked", [0, 1, 8])
def test_a_trace_holds_its_candidates_whatever_log_probabilities_are_asked_for(
    bundle: Path, tmp_path: Path, asked: int
) -> None:
    file = tmp_path / "run.jsonl"
    words = ("-p", TEXT, "--raw", "--max-tokens", 8, "--trace", file, "--json", "--logprobs", asked)
    done = hexgraft("run", bundle, *words)
    assert {len(each["top"]) for each in json.loads(done.stdout)["logprobs"]} == {asked}
    rounds = read_trace(file).rounds
    assert {len(judged.top) for current in rounds for judged in current.judged} == {max(5, asked)}
    assert all(margin is not None for current in rounds for margin in current.margins)


# ---------------------------------------------------------------------- tree


def test_tree_draws_all_rounds_or_one(traces: dict[str, Path]) -> None:
    rounds = read_trace(traces["levels"]).rounds
    done = hexgraft("tree", traces["levels"])
    assert done.exit_code == 0
    assert done.stdout.count("at position") == len(rounds)
    one = hexgraft("tree", traces["levels"], "--round", 2)
    assert one.stdout.startswith("round 2\n")
    assert one.stdout.count("at position") == 1
    beyond = hexgraft("tree", traces["levels"], "--round", 99)
    assert f"the trace has {len(rounds)} rounds" in error_of(beyond)[0]


def test_tree_gives_the_rounds_as_json(traces: dict[str, Path]) -> None:
    trace = read_trace(traces["levels"])
    found = json.loads(hexgraft("tree", traces["levels"], "--json").stdout)
    assert (found["drafter"], found["finish"]) == ("levels", "max-tokens")
    assert len(found["rounds"]) == len(trace.rounds)
    texts = trace.texts()
    for each, recorded in zip(found["rounds"], trace.rounds, strict=True):
        assert (each["round"], each["context"]) == (recorded.number, recorded.context)
        nodes, emitted = each["nodes"], each["emitted"]
        assert [node["token"] for node in nodes] == recorded.tokens
        assert [node["parent"] for node in nodes] == [None, *recorded.parents[1:]]
        assert [node["probability"] for node in nodes] == pytest.approx(recorded.probabilities)
        assert [one["token"] for one in emitted] == recorded.emitted
        assert all(texts[one["token"]] == one["text"] for one in (*nodes, *emitted))
        taken = [one["node"] for one in emitted]
        assert taken[:-1] == recorded.accepted[1:]
        assert taken[-1] is None or nodes[taken[-1]]["token"] == recorded.emitted[-1]
        accepted = [n for n, node in enumerate(nodes) if node["accepted"]]
        assert accepted == sorted({0, *taken} - {None})
    one = json.loads(hexgraft("tree", traces["levels"], "--json", "--round", 2).stdout)
    assert one["rounds"] == [found["rounds"][1]]
    both = hexgraft("tree", traces["levels"], "--json", "--html", "page.html")
    assert error_of(both) == ("--html writes a page, --json prints the rounds", "leave one out")


def test_tree_writes_a_page(traces: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = hexgraft("tree", traces["levels"], "--html", page)
    assert done.exit_code == 0
    assert done.stdout == f"{page}\n"
    assert done.stderr == ""
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    missing = hexgraft("tree", traces["levels"], "--html", tmp_path / "no" / "page.html")
    assert error_of(missing)[0] == f"the folder {tmp_path / 'no'} does not exist"
    assert hexgraft("tree", traces["levels"], "--html", page).exit_code == 0, "a page is written anew"
    before = traces["levels"].read_bytes()
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear neighbour")
    other = hexgraft("tree", traces["levels"], "--html", letter)
    assert error_of(other)[0] == f"{letter} exists already and is no page"
    assert letter.read_text() == "Dear neighbour"
    itself = hexgraft("tree", traces["levels"], "--html", traces["levels"])
    assert error_of(itself)[0].endswith("is the trace itself")
    assert traces["levels"].read_bytes() == before


def test_tree_says_that_a_trace_was_cut_off(traces: dict[str, Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(traces["levels"].read_bytes()[:-1])
    done = hexgraft("tree", cut, "--round", 1)
    assert done.exit_code == 0
    assert "was cut off after" in done.stderr


# ------------------------------------------------------------------- compare


def test_compare_calls_trees_and_plain_identical(traces: dict[str, Path]) -> None:
    for other in ("plain", "padded"):
        done = hexgraft("compare", traces["levels"], traces[other])
        assert done.exit_code == 0
        assert done.stdout == "identical: all 30 tokens are the same\n"


def test_compare_shows_a_real_difference(traces: dict[str, Path], tmp_path: Path) -> None:
    """The last token of a trace is replaced by the second best, as a wrong walk would."""
    lines = traces["plain"].read_text().splitlines()[:21]
    record = json.loads(lines[-1])
    wrong = record["judged"][0]["top"][1]
    record["emitted"], record["judged"][0]["token"] = [wrong[0]], wrong[0]
    record["judged"][0]["logit"] = wrong[1]
    file = tmp_path / "wrong.jsonl"
    file.write_text("\n".join([*lines[:-1], json.dumps(record)]) + "\n")
    done = hexgraft("compare", traces["levels"], file)
    assert done.exit_code == 1
    assert "different: the logits agree within" in done.stdout
    assert "after 19 equal tokens" in done.stdout
    shown = hexgraft("compare", traces["levels"], file, "--json")
    assert shown.exit_code == 1
    found = json.loads(shown.stdout)
    first, second = found["first_difference"]
    assert found["verdict"] == "different"
    assert (second["round"], second["node"], second["token"]) == (20, 0, wrong[0])
    assert first["top"][0]["token"] == first["token"]
    assert second["lead"] == pytest.approx(-first["lead"], abs=1e-3)
    assert first["lead"] > 0
    tie = hexgraft("compare", traces["levels"], file, "--noise", 1000)
    assert tie.exit_code == 0
    assert "rounding tie" in tie.stdout


def test_compare_runs_a_bundle_on_two_sessions(bundle: Path) -> None:
    done = hexgraft("compare", bundle, "-p", TEXT, "--raw", "--max-tokens", 20, "--widths", "bundle")
    assert done.exit_code == 0
    assert done.stdout == "identical: all 20 tokens are the same\n"
    assert "both sessions are the same" not in done.stderr
    same = hexgraft(
        "compare", bundle, "-p", TEXT, "--raw", "--max-tokens", 5, "--json", "--with-widths", "any"
    )
    found = json.loads(same.stdout)
    assert (found["verdict"], found["tokens"]) == ("identical", [5, 5])
    assert "both sessions are the same" in same.stderr


def test_compare_says_what_it_needs(bundle: Path, traces: dict[str, Path]) -> None:
    for arguments, words in (
        ([traces["plain"]], "one trace has nothing to be compared with"),
        ([traces["plain"], traces["levels"], "-p", "x"], "two traces have their prompt"),
        ([traces["plain"], traces["levels"], "--max-tokens", 5], "two traces have no use for --max-tokens"),
        ([traces["plain"], traces["levels"], "--with-backend", "cpu"], "no use for --with-backend"),
        ([bundle], "give one prompt"),
        ([traces["plain"], traces["warm"]], "draw tokens differently"),
        ([traces["plain"], bundle / "bundle.json"], "is not a trace"),
    ):
        done = hexgraft("compare", *arguments)
        assert words in error_of(done)[0]


def test_traces_and_bundles_in_another_order(bundle: Path, traces: dict[str, Path]) -> None:
    trace = traces["plain"]
    for arguments, hint in (
        (("compare", bundle, trace), f"hexgraft replay {trace} {bundle}"),
        (("compare", trace, bundle), f"hexgraft replay {trace} {bundle}"),
        (("compare", bundle, bundle), f"hexgraft compare {bundle} -p PROMPT"),
        (("replay", bundle, trace), f"hexgraft replay {trace} {bundle}"),
        (("replay", bundle, bundle), "give the trace first"),
        (("tree", bundle), "give the file that `hexgraft run --trace FILE` wrote"),
    ):
        done = hexgraft(*arguments)
        assert error_of(done)[1] == hint


def test_of_two_sessions_the_option_of_the_bad_one_is_named(bundle: Path, traces: dict[str, Path]) -> None:
    both = ("compare", bundle, "-p", "x", "--backend", "cpu")
    forced = ("replay", traces["plain"], bundle)
    neither = "is neither `bundle` nor numbers from 1 to 1024"
    for arguments, message, hint in (
        ((*both, "--with-widths", "foo"), f"--with-widths 'foo' {neither}", "example: --with-widths 8,32"),
        ((*both, "--widths", "foo"), f"--widths 'foo' {neither}", "example: --widths 8,32"),
        (
            (*both, "--with-widths", "8", "--tree-size", "16"),
            "--tree-size 16 is wider than --with-widths 8",
            "use --tree-size 8 or less, or a wider --with-widths",
        ),
        (
            (*both, "--with-backend", "cpu", "--with-provider", "htp"),
            "--with-backend cpu has no provider htp",
            "add --with-backend runner or --with-backend device",
        ),
        (
            (*forced, "--reference-widths", "foo"),
            f"--reference-widths 'foo' {neither}",
            "example: --reference-widths 8,32",
        ),
        ((*forced, "--widths", "foo"), f"--widths 'foo' {neither}", "example: --widths 8,32"),
        (
            (*forced, "--reference-provider", "htp"),
            "--reference cpu has no provider htp",
            "add --reference runner or --reference device",
        ),
    ):
        done = hexgraft(*arguments)
        assert error_of(done) == (message, hint)
        assert done.exit_code == 2
