"""The lab gives the figures of real runs, and its command says what it cannot do."""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from command import error_of, last_error_of
from command import hexgraft as program
from matplotlib.figure import Figure
from pair import make_pair

from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.lab.comparison import compare_drafters, measure, transcribe
from hexgraft.host.lab.plot import check_plot, write_figure
from hexgraft.host.lab.prompts import CATEGORIES, LAB_PROMPTS, LabPrompt
from hexgraft.host.sampling import Sampling
from hexgraft.models.errors import HexgraftError, UsageError

PROMPTS = [LabPrompt("chat", "abcab"), LabPrompt("maths", "xyz xyz"), LabPrompt("chat", "hello")]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("name", ["lookup", "chain", "best-first", "levels", "lookup+levels"])
def test_scripted_figures_are_those_of_a_real_run(bundle: Bundle, name: str, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=4)
    session = CpuSession(bundle)
    options = DecodeOptions(max_tokens=60, tree_size=1, sampling=sampling)
    transcripts = list(transcribe(session, PROMPTS, lambda text: list(text.encode()), options))
    drafter = make_drafter(name, bundle, partial(CpuSession, bundle, "draft"), sampling=sampling)
    for transcript in transcripts:
        scripted = measure(session, transcript, drafter, 12, options)
        real = Decoder(session, drafter, DecodeOptions(max_tokens=60, tree_size=12, sampling=sampling))
        real.begin(transcript.prompt)
        emitted = [token for current in real.rounds() for token in current.tokens]
        assert tuple(emitted) == transcript.answer
        ours, theirs = scripted.as_dict(), real.stats.as_dict()
        for volatile in ("seconds", "tokens_per_second"):
            ours.pop(volatile), theirs.pop(volatile)
        assert ours == theirs


def test_rows_sum_over_categories(bundle: Bundle) -> None:
    session = CpuSession(bundle)
    options = DecodeOptions(max_tokens=40, tree_size=1)
    transcripts = list(transcribe(session, PROMPTS, lambda text: list(text.encode()), options))
    makers = {"levels": partial(make_drafter, "levels", bundle, partial(CpuSession, bundle, "draft"))}
    ticks: list[int] = []
    rows = compare_drafters(session, transcripts, makers, [4, 8], options, lambda: ticks.append(1))
    assert len(ticks) == 6
    for size in (4, 8):
        total, *parts = [row for row in rows if row.tree_size == size]
        assert (total.category, {row.category for row in parts}) == ("all", {"chat", "maths"})
        assert total.tokens == sum(row.tokens for row in parts) == 120
        assert total.rounds == sum(row.rounds for row in parts)
        assert total.accepted == total.tokens - total.rounds
        assert 0 < total.efficiency <= 1


def test_thirty_prompts_in_six_categories() -> None:
    assert not any("\\" in prompt.text for prompt in LAB_PROMPTS), "a line that was joined badly"
    assert len(LAB_PROMPTS) == len({prompt.text for prompt in LAB_PROMPTS}) == 30
    for category in CATEGORIES:
        assert sum(prompt.category == category for prompt in LAB_PROMPTS) == 5


def test_the_command_prints_json_and_a_picture(bundle: Bundle, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\ntwo\n", encoding="utf-8")
    picture = tmp_path / "lab.svg"
    arguments = [
        "lab",
        str(bundle.path),
        "--prompts",
        str(prompts),
        "--max-tokens",
        "20",
        "--tree-sizes",
        "4,8",
    ]
    done = CliRunner().invoke(
        cli, [*arguments, "--drafters", "lookup,levels", "--plot", str(picture), "--json"]
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert {(row["drafter"], row["tree_size"]) for row in rows} == {
        ("lookup", 4), ("lookup", 8), ("levels", 4), ("levels", 8)
    }  # fmt: skip
    assert "<svg" in picture.read_text(encoding="utf-8")
    table = CliRunner().invoke(cli, [*arguments, "--drafters", "levels"])
    assert "2 prompts, 40 tokens" in table.stdout


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--drafters", "leaves"], "unknown drafter 'leaves'"),
        (["--tree-sizes", "4,x"], "--tree-sizes '4,x' is not a list"),
        (["--plot", "lab.doc"], "has no picture format"),
        (["--plot", "no/such/lab.png"], "does not exist"),
        (["--prompts", "missing.txt"], "cannot read missing.txt: No such file"),
    ],
)
def test_bad_options_are_refused(bundle: Bundle, extra: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["lab", str(bundle.path), *extra])
    assert isinstance(done.exception, UsageError)
    assert message in done.exception.message
    assert done.exception.hint
    assert done.exception.exit_code == 2


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its widest graph has eight rows."""
    folder = tmp_path_factory.mktemp("narrow")
    return make_pair(folder, noise=None, options=ExportOptions((1, 8), 256)).path


def test_the_usual_sizes_are_those_that_fit_the_graphs(narrow: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n", encoding="utf-8")
    words = ("lab", narrow, "--prompts", prompts, "--max-tokens", "8", "--drafters", "lookup", "--json")
    for extra, sizes in (((), {4, 8}), (("--widths", "3"), {3}), (("--tree-sizes", "2,6"), {2, 6})):
        done = program(*words, *extra)
        assert done.exit_code == 0, done.output
        assert {row["tree_size"] for row in json.loads(done.stdout)["rows"]} == sizes


@pytest.mark.parametrize(
    ("extra", "message", "hint"),
    [
        (
            ("--tree-sizes", "4,16"),
            "--tree-sizes 16 is wider than the target's widest graph, 8",
            "give at most 8, or export with a wider --widths",
        ),
        (
            ("--widths", "1"),
            "--tree-sizes 2 is wider than the target's widest graph, 1",
            "choose a wider --widths",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_decoded(
    narrow: Path, monkeypatch: pytest.MonkeyPatch, extra: tuple[str, ...], message: str, hint: str
) -> None:
    monkeypatch.setattr("hexgraft.host.cli.lab.transcribe", lambda *_: pytest.fail("decoded"))
    assert error_of(program("lab", narrow, *extra)) == (message, hint)


@pytest.mark.parametrize("command", ["lab", "tune"])
def test_what_cannot_be_tried_is_refused_before_anything_is_measured(
    narrow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for place in ("lab.transcribe", "tune.take_profile"):
        monkeypatch.setattr(f"hexgraft.host.cli.{place}", lambda *_: pytest.fail("measured"))
    found = error_of(program(command, narrow, "--drafters", "lookup,levels"))
    assert found[0] == f"the drafter levels needs a draft model, {narrow} has none"
    assert found[1] == "choose among lookup, chain, or export again with `--draft CHECKPOINT`"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n\n" + "two " * 300, encoding="utf-8")
    message, hint = error_of(program(command, narrow, "--prompts", prompts))
    assert message.startswith("prompt 2, 'two two two two two two two two t', has ")
    assert message.endswith(" tokens, the context holds 256")
    assert hint == "shorten it or leave it out, or export with a larger --context"


def test_a_picture_that_cannot_be_written_costs_no_rows(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n", encoding="utf-8")
    words = ("lab", bundle.path, "--prompts", prompts, "--max-tokens", "8", "--tree-sizes", "4")

    def full(*_: object) -> None:
        raise HexgraftError("no space left", "free some")

    monkeypatch.setattr("hexgraft.host.lab.plot.write_whole", lambda *_, replace: full())
    done = program(*words, "--drafters", "lookup", "--plot", tmp_path / "lab.png")
    assert last_error_of(done) == ("no space left", "free some")
    assert "1 prompt, 8 tokens" in done.stdout


@pytest.mark.parametrize("suffix", [".png", ".SVG", ".pdf"])
def test_a_picture_replaces_a_picture_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lab{suffix}"
    for _ in range(2):
        check_plot(path)
        write_figure(Figure(), path)
    path.write_text("Dear neighbour")
    with pytest.raises(UsageError) as caught:
        check_plot(path)
    assert caught.value.message == f"{path} exists already and is no {suffix[1:].upper()} picture"
    assert caught.value.hint == "choose another name for --plot, or remove it"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_picture_needs_a_folder_it_may_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lab.png"
    path.mkdir()
    with pytest.raises(UsageError) as caught:
        check_plot(path)
    assert caught.value.message == f"--plot {path} is a folder"
    assert caught.value.hint == f"example: --plot {path / 'picture.png'}"
    path.rmdir()

    def refuse(dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir / "tmp"))

    monkeypatch.setattr("hexgraft.host.atomic_file.TemporaryFile", refuse)
    with pytest.raises(HexgraftError, match=f"^cannot write {path}: Permission denied$"):
        check_plot(path)
