"""`--sampling authors`: the recommendation of a model's authors, where the command line says nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import error_of, hexgraft
from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.traces.trace import TOP_SAMPLED
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.models.checkpoint import open_checkpoint

PROMPT = ("-p", "the fox in the garden", "--max-tokens", "24")


def export(folder: Path, **generation: Any) -> Path:
    """A tiny target whose generation_config.json says this."""
    checkpoint = write_tiny_hf(folder / "checkpoint")
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | generation))
    options = ExportOptions((1, 8), 256)
    export_bundle(open_checkpoint(checkpoint), folder / "bundle", options=options, report=lambda step: None)
    return folder / "bundle"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"temperature": 1.5, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1}
    return export(tmp_path_factory.mktemp("authors"), do_sample=True, **settings)


def text_of(bundle: Path, *arguments: str) -> str:
    result = hexgraft("run", bundle, *PROMPT, *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_default_is_greedy_whatever_the_authors_say(bundle: Path) -> None:
    assert text_of(bundle) == text_of(bundle, "--temperature", "0", "--sampling", "greedy")
    assert text_of(bundle) != text_of(bundle, "--sampling", "authors")


def test_authors_sampling_is_that_of_the_options_it_names(bundle: Path) -> None:
    named = ("--temperature", "1.5", "--top-k", "40", "--top-p", "0.95", "--repetition-penalty", "1.1")
    result = hexgraft("run", bundle, *PROMPT, "--sampling", "authors", "--seed", "3")
    assert result.stdout == text_of(bundle, *named, "--seed", "3")
    assert (
        "sampling as the authors say: temperature 1.5, top-k 40, top-p 0.95, repetition-penalty 1.1\n"
        in result.stderr
    )
    plain = hexgraft("run", bundle, *PROMPT, "--sampling", "authors", "--seed", "3", "--plain")
    assert plain.stdout == result.stdout


def test_a_trace_holds_as_many_candidates_as_draws_need(bundle: Path, tmp_path: Path) -> None:
    text_of(bundle, "--sampling", "authors", "--trace", str(tmp_path / "run.jsonl"))
    trace = read_trace(tmp_path / "run.jsonl")
    assert trace.header.sampling.temperature == 1.5
    assert {len(judged.top) for current in trace.rounds for judged in current.judged} == {TOP_SAMPLED}


def test_what_is_given_wins(bundle: Path) -> None:
    result = hexgraft("run", bundle, *PROMPT, "--sampling", "authors", "--temperature", "0", "--top-k", "7")
    assert "authors say: top-p 0.95, repetition-penalty 1.1\n" in result.stderr
    assert result.stdout == text_of(bundle, "--repetition-penalty", "1.1")


def test_chat_samples_so_too(bundle: Path) -> None:
    arguments = ("chat", bundle, "--max-tokens", "8", "--sampling", "authors")
    result = hexgraft(*arguments, input="the fox\n")
    assert result.exit_code == 0, result.stderr
    assert "sampling as the authors say: temperature 1.5" in result.stderr


def test_inspect_tells_what_they_say(bundle: Path) -> None:
    shown = " ".join(hexgraft("inspect", bundle).stdout.split())
    assert "temperature 1.5, top_k 40, top_p 0.95, repetition_penalty 1.1 (--sampling authors)" in shown


def test_a_bundle_without_a_recommendation_is_told_of(tmp_path: Path) -> None:
    result = hexgraft("run", export(tmp_path), *PROMPT, "--sampling", "authors")
    error, _ = error_of(result)
    assert "does not say how the model's authors sample" in error


def test_greedy_authors_are_greedy(tmp_path: Path) -> None:
    bundle = export(tmp_path, do_sample=False, temperature=0.7)
    assert text_of(bundle, "--sampling", "authors") == text_of(bundle)
