"""The lab gives the figures of real runs, and its command says what it cannot do."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.lab.comparison import compare_drafters, measure, transcribe
from hexgraft.host.lab.prompts import CATEGORIES, LAB_PROMPTS, LabPrompt
from hexgraft.host.sampling import Sampling
from hexgraft.models.errors import UsageError

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
        (["--prompts", "missing.txt"], "cannot read prompts"),
    ],
)
def test_bad_options_are_refused(bundle: Bundle, extra: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["lab", str(bundle.path), *extra])
    assert isinstance(done.exception, UsageError)
    assert message in done.exception.message
    assert done.exception.hint
    assert done.exception.exit_code == 2
