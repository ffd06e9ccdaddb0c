"""The commands around traces: run --trace, tree, compare and replay, with their words and exit codes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command import error_of, hexgraft, last_error_of
from pair import write_pair

from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.measure.wrapped import WrappedRows
from hexgraft.host.session import CacheRows, Floats, Session, Visibility
from hexgraft.host.traces.trace import Record
from hexgraft.host.traces.trace_file import TraceWriter, read_trace
from hexgraft.models.errors import INTERRUPTED, HexgraftError

TEXT = "the quick brown fox and the quick brown dog and the quick"


class Outcome:
    """What a command returned, wrote and raised."""

    def __init__(self, *arguments: object) -> None:
        result = CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)
        self.error: HexgraftError | None = None
        if isinstance(result.exception, HexgraftError):
            self.error = result.exception
        elif result.exception is not None:
            raise result.exception
        self.code = result.return_value
        self.stdout, self.stderr = result.stdout, result.stderr

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.stdout)
        return value


@pytest.fixture(scope="module")
def traces(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    made = {}
    for name, options in {
        "levels": ["--draft", "levels"],
        "plain": ["--plain"],
        "padded": ["--draft", "lookup", "--widths", "bundle"],
        "warm": ["--temperature", 1],
    }.items():
        made[name] = folder / f"{name}.jsonl"
        Outcome("run", bundle, "-p", TEXT, "--raw", "--max-tokens", 30, "--trace", made[name], *options)
    return made


def test_run_records_what_it_prints(bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    done = Outcome(
        "run", bundle, "-p", TEXT, "--raw", "--max-tokens", 30, "--trace", file, "--json",
        "--draft-option", "top_k=3",
    )  # fmt: skip
    trace = read_trace(file)
    assert trace.emitted == done.json["tokens"]
    assert "logprobs" not in done.json
    assert trace.header.knobs == ["top_k=3"]
    assert all(len(judged.top) == 5 for current in trace.rounds for judged in current.judged)
    assert trace.end is not None
    assert trace.end.finish == done.json["finish"]


def test_an_interrupted_run_keeps_its_trace(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def at_once() -> Iterator[Callable[[], bool]]:
        yield lambda: True

    monkeypatch.setattr("hexgraft.host.cli.run.interruptible", at_once)
    file = tmp_path / "run.jsonl"
    done = Outcome("run", bundle, "-p", TEXT, "--raw", "--trace", file)
    assert done.code == INTERRUPTED
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
    done = Outcome("run", bundle, "-p", TEXT, "--raw", "--trace", tmp_path / "no" / "run.jsonl")
    assert done.error is not None
    assert "cannot write the trace" in done.error.message


def test_draws_record_more_candidates(traces: dict[str, Path]) -> None:
    warm = read_trace(traces["warm"])
    assert all(len(judged.top) == 20 for current in warm.rounds for judged in current.judged)


# ---------------------------------------------------------------------- tree


@pytest.mark.parametrize("asked", [0, 1, 8])
def test_a_trace_holds_its_candidates_whatever_log_probabilities_are_asked_for(
    bundle: Path, tmp_path: Path, asked: int
) -> None:
    file = tmp_path / "run.jsonl"
    words = ("-p", TEXT, "--raw", "--max-tokens", 8, "--trace", file, "--json", "--logprobs", asked)
    done = Outcome("run", bundle, *words)
    assert {len(each["top"]) for each in done.json["logprobs"]} == {asked}
    rounds = read_trace(file).rounds
    assert {len(judged.top) for current in rounds for judged in current.judged} == {max(5, asked)}
    assert all(margin is not None for current in rounds for margin in current.margins)


def test_tree_draws_all_rounds_or_one(traces: dict[str, Path]) -> None:
    rounds = read_trace(traces["levels"]).rounds
    done = Outcome("tree", traces["levels"])
    assert done.code == 0
    assert done.stdout.count("at position") == len(rounds)
    one = Outcome("tree", traces["levels"], "--round", 2)
    assert one.stdout.startswith("round 2\n")
    assert one.stdout.count("at position") == 1
    beyond = Outcome("tree", traces["levels"], "--round", 99)
    assert beyond.error is not None
    assert f"the trace has {len(rounds)} rounds" in beyond.error.message


def test_tree_writes_a_page(traces: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = Outcome("tree", traces["levels"], "--html", page)
    assert done.code == 0
    assert done.stdout == ""
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    missing = Outcome("tree", traces["levels"], "--html", tmp_path / "no" / "page.html")
    assert missing.error is not None
    assert missing.error.message == f"the folder {tmp_path / 'no'} does not exist"
    assert Outcome("tree", traces["levels"], "--html", page).code == 0, "a page is written anew"
    before = traces["levels"].read_bytes()
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear neighbour")
    other = Outcome("tree", traces["levels"], "--html", letter)
    assert other.error is not None
    assert other.error.message == f"{letter} exists already and is no page"
    assert letter.read_text() == "Dear neighbour"
    itself = Outcome("tree", traces["levels"], "--html", traces["levels"])
    assert itself.error is not None
    assert itself.error.message.endswith("is the trace itself")
    assert traces["levels"].read_bytes() == before


def test_tree_says_that_a_trace_was_cut_off(traces: dict[str, Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(traces["levels"].read_bytes()[:-1])
    done = Outcome("tree", cut, "--round", 1)
    assert done.code == 0
    assert "was cut off after" in done.stderr


# ------------------------------------------------------------------- compare


def test_compare_calls_trees_and_plain_identical(traces: dict[str, Path]) -> None:
    for other in ("plain", "padded"):
        done = Outcome("compare", traces["levels"], traces[other])
        assert done.code == 0
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
    done = Outcome("compare", traces["levels"], file)
    assert done.code == 1
    assert "different: the logits agree within" in done.stdout
    assert "after 19 equal tokens" in done.stdout
    shown = Outcome("compare", traces["levels"], file, "--json")
    assert shown.code == 1
    first, second = shown.json["first_difference"]
    assert shown.json["verdict"] == "different"
    assert (second["round"], second["node"], second["token"]) == (20, 0, wrong[0])
    assert first["top"][0]["token"] == first["token"]
    assert second["lead"] == pytest.approx(-first["lead"], abs=1e-3)
    assert first["lead"] > 0
    tie = Outcome("compare", traces["levels"], file, "--noise", 1000)
    assert tie.code == 0
    assert "rounding tie" in tie.stdout


def test_compare_runs_a_bundle_on_two_sessions(bundle: Path) -> None:
    done = Outcome("compare", bundle, "-p", TEXT, "--raw", "--max-tokens", 20, "--widths", "bundle")
    assert done.code == 0
    assert done.stdout == "identical: all 20 tokens are the same\n"
    assert "both sessions are the same" not in done.stderr
    same = Outcome(
        "compare", bundle, "-p", TEXT, "--raw", "--max-tokens", 5, "--json", "--with-widths", "any"
    )
    assert same.json["verdict"] == "identical"
    assert same.json["tokens"] == [5, 5]
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
        done = Outcome("compare", *arguments)
        assert done.error is not None
        assert words in done.error.message


# -------------------------------------------------------------------- replay


def test_replay_of_the_same_session_finds_no_difference(bundle: Path, traces: dict[str, Path]) -> None:
    done = Outcome("replay", traces["levels"], bundle, "--check-cache")
    assert done.code == 0
    assert "Every logit is the same." in done.stdout
    assert "30 of 30 best tokens the same, max error 0." in done.stdout
    assert "Cache: no damage." in done.stdout


def test_replay_takes_widths_from_the_trace(bundle: Path, traces: dict[str, Path]) -> None:
    found = Outcome("replay", traces["padded"], bundle, "--reference-widths", "any", "--json").json
    assert found["other"]["widths"] == [1, 8, 16, 32]
    assert found["reference"]["widths"] is None
    assert found["total"]["max_error"] < 1e-3
    assert found["total"]["agreement"] == 1
    assert found["recorded"] == {"rows": 30, "agreed": 30, "max_error": 0}
    trace = read_trace(traces["padded"])
    nodes = [(r["round"], n["node"]) for r in found["rounds"] for n in r["nodes"]]
    assert nodes == [(r.number, node) for r in trace.rounds for node in range(len(r.tokens))]


@pytest.mark.parametrize(
    ("option", "value"), [("--threads", "-1"), ("--threads", "5000"), ("--cache-noise", "-1.0")]
)
def test_replay_refuses_numbers_that_mean_nothing(
    bundle: Path, traces: dict[str, Path], option: str, value: str
) -> None:
    done = hexgraft("replay", traces["plain"], bundle, option, value)
    assert done.exit_code == 2
    assert error_of(done)[0].startswith(f"{option}: {value} is not in the range")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("device", "htp")),
        (["--backend", "device"], ("device", "htp")),
        (["--backend", "device", "--provider", "cpu"], ("device", "cpu")),
        (["--backend", "runner"], ("runner", "cpu")),
    ],
)
def test_replay_looks_into_the_npu_that_was_traced(
    bundle: Path, traces: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], expected: tuple[str, str],
) -> None:  # fmt: skip
    file = tmp_path / "phone.jsonl"
    file.write_text(traces["plain"].read_text().replace('"backend":"cpu"', '"backend":"device-htp"', 1))
    opened: list[tuple[str, str]] = []

    def open_role(found: Bundle, role: str, options: dict[str, Any]) -> Session:
        opened.append((options["backend"], options["provider"]))
        return CpuSession(found, role)

    monkeypatch.setattr("hexgraft.host.cli.replay.open_role", open_role)
    assert Outcome("replay", file, bundle, *words).code == 0
    assert opened == [expected, ("cpu", "cpu")]


class Broken(CpuSession):
    """Says NaN of one token, that another one is certain, and holds a cell that is no number."""

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> BrokenRows:
        return BrokenRows(super().forward(tokens, positions, visible))

    def save(self, count: int) -> CacheRows:
        rows = super().save(count)
        rows.keys[1, 0, 2, 0] = math.nan
        return rows


class BrokenRows(WrappedRows):
    def logits(self, row: int) -> Floats:
        logits = super().logits(row)
        logits[int(logits.argmax())] = math.inf
        logits[0] = math.nan
        return logits


def test_replay_of_what_is_not_finite_is_json_all_the_same(
    bundle: Path, traces: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_bundle(bundle)
    sessions: list[Session] = [Broken(opened), CpuSession(opened)]
    monkeypatch.setattr("hexgraft.host.cli.replay.open_role", lambda *asked: sessions.pop(0))
    done = Outcome("replay", traces["levels"], bundle, "--check-cache", "--json")
    assert done.code == 1
    found = done.json
    assert found["total"]["not_finite"] == found["total"]["rows"]
    assert found["recorded"]["max_error"] is None
    assert found["worst"][0]["kl"] is None
    damage = found["damage"]
    assert (damage["layer"], damage["slot"], damage["part"], damage["dim"]) == (1, 0, "key", 2)
    assert damage["found"] is None
    assert isinstance(damage["expected"], float)


def test_replay_on_another_model_says_so_and_compares(
    bundle: Path, traces: dict[str, Path], tmp_path: Path
) -> None:
    """Another model of the same vocabulary: far from what was recorded, and compared nevertheless."""
    other = write_pair(tmp_path, seed=5)
    done = Outcome("replay", traces["levels"], other, "--json")
    assert "recorded with another bundle" in done.stderr
    assert done.json["total"]["max_error"] == 0
    assert done.json["recorded"]["max_error"] > 1
    foreign = write_pair(tmp_path / "foreign", vocab=400)
    refused = Outcome("replay", traces["levels"], foreign)
    assert refused.error is not None
    assert "whose vocabulary is not that of this bundle" in refused.error.message
