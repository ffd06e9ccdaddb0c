"""`hexgraft tune`: what it says and keeps, what `run` makes of it, and predictions for other places."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from command import error_of, last_error_of
from command import hexgraft as program
from pair import make_pair
from shapes import shaped_profile

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.drafters.ledger import FREE, Toll
from hexgraft.host.measure.choice import Choice, Site, Tuned, read_tuned, write_choice
from hexgraft.host.measure.contest import Contender, Contest
from hexgraft.host.measure.contest import Result as Outcome
from hexgraft.host.measure.machine import this_machine
from hexgraft.host.measure.profile import LatencyProfile, Spread, write_profile
from hexgraft.host.measure.setting import Setting
from hexgraft.host.prefix import Place
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.models.errors import HexgraftError, UsageError

PROMPT = ("-p", "the sky is blue", "--raw", "--max-tokens", "24")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEXGRAFT_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("the sky is blue\n", encoding="utf-8")
    return path


def hexgraft(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def keep(bundle: Bundle, setting: Setting | None, temperature: float = 0.0, *, toll: Toll = FREE) -> None:
    """As if `tune` had chosen this on this machine."""
    site = Site(Place.of(bundle, "cpu", None), 0, this_machine().identity)
    choice = Choice(temperature, setting, 64, 30.0, 20.0, 30.0, 20.0, 33.0, 1.6, toll)
    write_choice(site, shaped_profile("flat"), choice)


def test_what_is_chosen_is_what_run_does(bundle: Bundle, prompts: Path, state: Path) -> None:
    arguments = ("--prompts", str(prompts), "--max-tokens", "16", "--drafters", "lookup", "--repeats", "1")
    done = hexgraft("tune", str(bundle.path), *arguments, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (file,) = (state / "tuned").iterdir()
    assert found["file"] == str(file)
    kept = msgspec.json.decode(file.read_bytes(), type=Tuned)
    assert msgspec.to_builtins(kept.choices[0].setting) == found["choice"]["setting"]
    assert kept.profile.bundle == bundle.digest
    assert found["settings"][-1]["adaptive"] is True
    assert found["settings"][0]["measured"]["speed"] > 0
    ran = hexgraft("run", str(bundle.path), *PROMPT)
    assert "tuned: " in ran.stderr


@pytest.mark.parametrize("fixed", [1.6, 1.01])
def test_what_brings_more_than_may_be_kept_to_is_told(
    bundle: Bundle, prompts: Path, monkeypatch: pytest.MonkeyPatch, fixed: float
) -> None:
    """Plain decoding is chosen where keeping to what pays takes what trees bring; their options are shown."""

    def run(contest: Contest, contenders: Sequence[Contender]) -> tuple[Outcome, list[Outcome]]:
        ratios = {each.title: 1.0 if "adaptive" in each.title else fixed for each in contenders}
        found = [Outcome(title, Spread.single(20 * r), Spread.single(r)) for title, r in ratios.items()]
        return Outcome("plain", Spread.single(20.0), Spread.single(1.0)), found

    monkeypatch.setattr(Contest, "run", run)
    words = ("--prompts", str(prompts), "--max-tokens", "8", "--drafters", "lookup", "--no-write")
    done = hexgraft("tune", str(bundle.path), *words)
    assert done.exit_code == 0, done.output
    assert "no tree brings 1.05x here kept to what pays: plain decoding is chosen" in done.stderr
    pattern = r"not kept to it, .*lookup, (\d+) nodes.* brings 1\.60x, .*: --draft lookup --tree-size (\d+)"
    told = re.search(pattern, done.stderr)
    assert (told is not None) == (fixed > 1.05)
    assert told is None or told[1] == told[2]


def test_many_that_were_run_are_shown_without_the_rest(bundle: Bundle, prompts: Path) -> None:
    words = ("--prompts", str(prompts), "--max-tokens", "8", "--drafters", "lookup", "--repeats", "1")
    done = hexgraft("tune", str(bundle.path), *words, "--verify", "9", "--no-write")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("lookup,") == 18, "nine settings, as they are and kept to what pays"


def test_a_choice_that_cannot_be_kept_is_shown_all_the_same(
    bundle: Bundle, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise HexgraftError("no space left", "free some")

    monkeypatch.setattr("hexgraft.host.cli.tune.write_choice", full)
    words = ("--prompts", prompts, "--max-tokens", "8", "--drafters", "lookup", "--repeats", "1")
    done = program("tune", bundle.path, *words, "--json")
    assert last_error_of(done) == ("no space left", "free some")
    found = json.loads(done.stdout)
    assert found["choice"]["measured_plain"] > 0
    assert found["file"] is None


@pytest.mark.parametrize("extra", [(), ("--no-write",)])
def test_a_folder_that_takes_no_choice_is_said_before_measuring(
    bundle: Bundle, prompts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, extra: tuple[str, ...]
) -> None:
    def measured(*_: object) -> LatencyProfile:
        raise UsageError("measured", "so far")

    taken = tmp_path / "taken"
    taken.write_text("a file")
    monkeypatch.setenv("HEXGRAFT_STATE", str(taken))
    monkeypatch.setattr("hexgraft.host.cli.tune.take_profile", measured)
    message, hint = error_of(program("tune", bundle.path, "--prompts", prompts, *extra))
    if extra:
        assert message == "measured"
    else:
        assert message == f"no choice can be kept in {taken / 'tuned'}: Not a directory"
        assert hint == "name another folder in HEXGRAFT_STATE, or keep nothing with --no-write"


def test_explicit_options_win(bundle: Bundle) -> None:
    keep(bundle, Setting("levels", 8))
    tuned = hexgraft("run", str(bundle.path), *PROMPT, "--json")
    assert tuned.exit_code == 0, tuned.output
    assert "tuned: levels, 8 nodes, as far as it pays (1.60x plain decoding" in tuned.stderr
    plain = hexgraft("run", str(bundle.path), *PROMPT, "--json", "--plain")
    assert json.loads(tuned.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]
    assert json.loads(tuned.stdout)["stats"]["draft_passes"] > 0
    for extra in (
        ["--plain"],
        ["--no-tuned"],
        ["--draft", "lookup"],
        ["--tree-size", "4"],
        ["--tree-depth", "2"],
        ["--draft-option", "top_k=2"],
        ["--verifier", "specinfer"],
        ["--temperature", "0.7"],
        ["--widths", "8,32"],
    ):
        assert "tuned" not in hexgraft("run", str(bundle.path), *PROMPT, *extra).stderr, extra


@pytest.mark.parametrize("toll", [Toll(), Toll(asking=1000.0)])
def test_runs_reckon_with_what_tuning_found_drafting_to_take(bundle: Bundle, toll: Toll) -> None:
    keep(bundle, Setting("levels", 8), toll=toll)
    ran = hexgraft("run", str(bundle.path), *PROMPT, "--json")
    assert (json.loads(ran.stdout)["stats"]["draft_passes"] > 0) == (toll == Toll())


def test_plain_decoding_may_be_chosen(bundle: Bundle) -> None:
    keep(bundle, None)
    ran = hexgraft("run", str(bundle.path), *PROMPT, "--json")
    assert "tuned: plain decoding, as no tree pays here" in ran.stderr
    assert json.loads(ran.stdout)["stats"]["tokens_per_round"] == 1
    assert "tuned" not in hexgraft("run", str(bundle.path), *PROMPT, "--no-tuned").stderr


def test_a_conversation_is_tuned_too(bundle: Bundle) -> None:
    keep(bundle, Setting("lookup+levels", 8))
    done = CliRunner().invoke(cli, ["chat", str(bundle.path), "--max-tokens", "8"], input="one\ntwo\n")
    assert done.exit_code == 0, done.output
    assert "tuned: lookup+levels" in done.stderr


def test_a_trace_of_a_tuned_run_repeats_and_replays(bundle: Bundle, tmp_path: Path) -> None:
    keep(bundle, Setting("levels", 8))
    traces = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for trace in traces:
        done = hexgraft("run", str(bundle.path), *PROMPT, "--trace", str(trace))
        assert done.exit_code == 0, done.output
    rounds = [
        [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in t.read_text().splitlines()[1:-1]
        ]
        for t in traces
    ]
    assert rounds[0] == rounds[1]
    replayed = hexgraft("replay", str(traces[0]), str(bundle.path))
    assert replayed.exit_code == 0, replayed.output


def test_a_tuned_run_keeps_to_the_depth_that_was_chosen(bundle: Bundle, tmp_path: Path) -> None:
    keep(bundle, Setting("levels", 8, tree_depth=2, options=("top_k=3",)))
    done = hexgraft("run", str(bundle.path), *PROMPT, "--trace", str(tmp_path / "run.jsonl"))
    assert "tuned: levels, 8 nodes, depth 2, top_k=3, as far as it pays" in done.stderr
    trace = read_trace(tmp_path / "run.jsonl")
    assert max(current.tree().depth for current in trace.rounds) == 2
    assert trace.header.tree_depth == 2
    assert trace.header.knobs == ["top_k=3"]


def rounds_of(trace: Path) -> list[dict[str, object]]:
    """The rounds of a trace but for their times."""
    lines = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()[1:-1]]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_choices_by_temperature_stand_beside_each_other(bundle: Bundle) -> None:
    for temperature, size in ((0.0, 4), (1.0, 8), (0.2, 16), (1.0, 32)):
        keep(bundle, Setting("levels", size), temperature)
    tuned = read_tuned(Site(Place.of(bundle, "cpu", None), 0, this_machine().identity))
    assert tuned is not None
    assert len(tuned.choices) == 3
    for temperature, size in ((0.0, 4), (0.1, 16), (0.9, 32)):
        choice = tuned.at(temperature)
        assert choice is not None
        assert choice.setting == Setting("levels", size)


def test_what_was_chosen_for_one_chip_is_not_another_s(bundle: Bundle) -> None:
    """Of several builds in one bundle each has choices of its own; the CPU's are found where they were."""
    cpu = Place.of(bundle, "cpu", None)
    chips = [replace(cpu, provider="htp-sim", soc=soc) for soc in ("SM8650", "SM8750")]
    sites = [Site(place, 0, "here") for place in (cpu, *chips)]
    assert len({site.path for site in sites}) == 3
    words = (cpu.provider, cpu.precision, cpu.widths, 0, "here")
    key = hashlib.sha256("\n".join(map(str, words)).encode()).hexdigest()[:12]
    assert sites[0].path.name.endswith(f"-{key}.json")
    write_choice(sites[1], shaped_profile("flat"), Choice(0.0, None, 64, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    assert read_tuned(sites[1]) is not None
    assert read_tuned(sites[2]) is None


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:500], "is damaged: "),
        (lambda data: b'{"broken', "is damaged: "),
        (lambda data: data.replace(b'"temperature": 0.0', b'"temperature": "cold"'), "is damaged: "),
        (lambda data: data.replace(b'"levels"', b'"levelt"'), "is damaged: unknown drafter 'levelt'"),
        (lambda data: data.replace(b'"levels"', b'"levels", "options": ["nope=1"]'), "has no option 'nope'"),
        (lambda data: data.replace(b'"tree_size": 8', b'"tree_size": 0'), "is damaged: "),
        (lambda data: data.replace(b'"speedup": 1.6', b'"speedup": -3'), "is damaged: "),
        (lambda data: data.replace(b'"toll": {}', b'"toll": {"node": 1e300}'), "is damaged: "),
        (lambda data: data.replace(b'"prior": []', b'"prior": [1e300, 0, 0, 0, 0, 0, 0]'), "is damaged: "),
        (lambda data: re.sub(rb'"choices": .*', b'"choices": []}', data, flags=re.S), "is damaged: "),
        (
            lambda data: re.sub(rb'"passes": \[.*?\]', b'"passes": []', data, count=1, flags=re.S),
            "no passes of",
        ),
        (lambda data: data.replace(b'"format": 3', b'"format": 2', 1), "is of another version of hexgraft"),
    ],
)
def test_a_choice_that_cannot_be_read_is_said(
    bundle: Bundle, state: Path, damage: Callable[[bytes], bytes], words: str
) -> None:
    """And the run goes on; a new choice takes its place."""
    keep(bundle, Setting("levels", 8))
    (file,) = (state / "tuned").iterdir()
    before = file.read_bytes()
    file.write_bytes(damage(before))
    assert file.read_bytes() != before
    ran = program("run", bundle.path, *PROMPT)
    assert ran.exit_code == 0, ran.stderr
    assert f"not tuned: what was tuned in {file} is " in ran.stderr
    assert words in ran.stderr
    assert "tune again: hexgraft tune BUNDLE" in ran.stderr
    assert ran.stdout == program("run", bundle.path, *PROMPT, "--no-tuned").stdout
    keep(bundle, Setting("levels", 8))
    assert file.read_bytes() == before


def test_a_folder_of_choices_that_is_a_file_is_said(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    monkeypatch.setenv("HEXGRAFT_STATE", str(taken))
    ran = program("run", bundle.path, *PROMPT)
    assert ran.exit_code == 0
    assert f"not tuned: cannot read what was tuned in {taken / 'tuned'}" in ran.stderr
    assert "HEXGRAFT_STATE" in ran.stderr


def test_another_place_is_foretold_and_nothing_kept(
    bundle: Bundle, prompts: Path, tmp_path: Path, state: Path
) -> None:
    table = tmp_path / "table.json"
    write_profile(shaped_profile("flat"), table)
    arguments = (
        "tune",
        str(bundle.path),
        "--prompts",
        str(prompts),
        "--max-tokens",
        "16",
        "--drafters",
        "levels",
    )
    done = hexgraft(*arguments, "--profile", str(table))
    assert done.exit_code == 0, done.output
    assert "predictions for a machine of tests, not measurements" in done.stdout
    assert "passes are those of target" in done.stdout
    assert not state.exists()
    printed = json.loads(hexgraft(*arguments, "--profile", str(table), "--json").stdout)
    assert printed["predictions_only"] is True
    assert printed["plain"]["predicted"] == pytest.approx(20, rel=0.1)
    assert "measured" not in json.dumps(printed["predictions"])


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--drafters", "leaves"], "unknown drafter 'leaves'"),
        (["--profile", "snapdragon-1"], "no profile is called snapdragon-1"),
        (["--profile", "missing.json"], "cannot read missing.json"),
        (["--widths", "1", "--profile", "TABLE"], "no graph a tree fits in"),
    ],
)
def test_bad_options_are_refused(
    bundle: Bundle, prompts: Path, tmp_path: Path, extra: list[str], message: str
) -> None:
    narrow = shaped_profile("flat")
    ones = [each for each in narrow.target.passes if each.width == 1]
    target = msgspec.structs.replace(narrow.target, passes=ones, widths=[1])
    write_profile(msgspec.structs.replace(narrow, target=target), tmp_path / "table.json")
    words = [str(tmp_path / "table.json") if word == "TABLE" else word for word in extra]
    done = hexgraft("tune", str(bundle.path), "--prompts", str(prompts), "--max-tokens", "4", *words)
    assert done.exit_code != 0
    assert message in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--drafters", "leaves"), "unknown drafter 'leaves'"),
        (("--drafters", ""), "unknown drafter ''"),
        (("--drafters", "lookup,sampled"), "unknown drafter 'sampled'"),
        (("--prompts", "missing.txt"), "cannot read missing.txt: No such file"),
        (("--temperature", "-1"), "is not 0 or more"),
    ],
)
def test_what_was_typed_is_checked_before_anything_is_measured(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("hexgraft.host.cli.tune.take_profile", lambda *_: pytest.fail("measured"))
    done = CliRunner().invoke(cli, ["tune", str(bundle.path), *words])
    assert isinstance(done.exception, UsageError)
    assert message in done.exception.message
    assert done.exception.hint
