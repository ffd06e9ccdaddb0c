"""A prompt of 8k tokens: read in chunks, with progress where a person looks, and right at its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import at_terminal, hexgraft
from pair import write_pair

from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import open_bundle
from hexgraft.host.text import TextCodec

SIZES = {"layers": 1, "hidden": 32, "heads": 2, "head_dim": 16, "context": 8192}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    return write_pair(folder, noise=None, options=ExportOptions((1, 128), 8192), **SIZES)


@pytest.fixture(scope="module")
def prompt(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 8 000 tokens and a few more."""
    codec, text = TextCodec(open_bundle(bundle)), ""
    while len(codec.encode_raw(text)) < 8000:
        text += "the quick brown fox jumps over the lazy dog. " * 50
    file = tmp_path_factory.mktemp("prompt") / "prompt.txt"
    file.write_text(text[: len(text) * 8100 // len(codec.encode_raw(text))])
    return file


def test_trees_and_plain_decoding_agree_at_the_far_end(bundle: Path, prompt: Path) -> None:
    texts = []
    for arguments in (("--plain", "--widths", "bundle"), ("--draft", "lookup")):
        result = hexgraft("run", bundle, "--raw", "-f", prompt, "--max-tokens", "16", "--json", *arguments)
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert found["stats"]["prompt_tokens"] > 7900
        texts.append(found["tokens"])
    assert texts[0] == texts[1]


def test_reading_a_long_prompt_is_shown_at_a_terminal(bundle: Path, prompt: Path) -> None:
    words = ("run", bundle, "--raw", "-f", prompt, "--max-tokens", "4")
    shown, output = at_terminal(*words, streams=["stderr"])
    assert "[max-tokens] 4 tokens" in shown
    assert "prefill" in shown
    assert b"prefill" not in output
