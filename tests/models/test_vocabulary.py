"""Drafts of other vocabulary sizes: accepted where tokens agree, refused with the first that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import causal
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import ExportError
from hexgraft.models.vocabulary import FittedDraft, fit_draft


def rename(folder: Path, number: int, text: str, special: bool) -> None:
    """Give a token of a folder's tokenizer another text."""
    path = folder / "tokenizer.json"
    value: dict[str, Any] = json.loads(path.read_text())
    vocab = value["model"]["vocab"]
    old = next(token for token, at in vocab.items() if at == number)
    vocab[text] = vocab.pop(old)
    if special:
        next(token for token in value["added_tokens"] if token["id"] == number)["content"] = text
    else:
        value["model"]["merges"] = [
            pair for pair in value["model"]["merges"] if old not in (*pair, "".join(pair))
        ]
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rows", [310, 320, 350])
def test_a_draft_of_other_rows_is_fitted(tmp_path: Path, rows: int, tied: bool) -> None:
    """Its logits on the shared rows stay its own; rows it lacks give 0, rows beyond the target's are gone."""
    target = open_checkpoint(write_tiny_hf(tmp_path / "t"))
    folder = write_tiny_hf(tmp_path / "d", vocab=rows, layers=1, tied=tied, seed=2)
    draft = open_checkpoint(folder)
    options = ExportOptions((1, 8), 64)
    export_bundle(draft, tmp_path / "alone", options=options, report=lambda step: None)
    export_bundle(target, tmp_path / "pair", draft=draft, options=options, report=lambda step: None)
    pair = open_bundle(tmp_path / "pair")
    assert pair.draft is not None
    assert pair.draft.vocab == 320
    tokens, shared = [5, 200, 300], min(rows, 320)
    found = CpuSession(pair, "draft").forward(tokens, range(3), causal(0, 3)).logits(2)
    own = CpuSession(open_bundle(tmp_path / "alone")).forward(tokens, range(3), causal(0, 3)).logits(2)
    np.testing.assert_allclose(found[:shared], own[:shared], atol=1e-5)
    assert not found[shared:].any()
    assert isinstance(fit_draft(target, draft), FittedDraft) == (rows != 320)
    assert any("cut" in note for note in draft.notes) == (rows > 320)
    assert any("lacks 10 tokens" in note for note in draft.notes) == (rows < 320)


def test_special_tokens_may_have_other_names(tmp_path: Path) -> None:
    target = open_checkpoint(write_tiny_hf(tmp_path / "t"))
    rename(write_tiny_hf(tmp_path / "d"), 1, "<|begin|>", special=True)
    draft = open_checkpoint(tmp_path / "d")
    assert fit_draft(target, draft) is draft
    assert any("the first is 1: '<|begin|>' there" in note for note in draft.notes)


def test_the_first_other_token_is_named(tmp_path: Path) -> None:
    target = open_checkpoint(write_tiny_hf(tmp_path / "t"))
    rename(write_tiny_hf(tmp_path / "d"), 317, "other", special=False)
    rename(tmp_path / "d", 311, "another", special=False)
    with pytest.raises(ExportError, match="token 311 is 'another' there and") as caught:
        fit_draft(target, open_checkpoint(tmp_path / "d"))
    assert caught.value.hint == "take a draft of the same model family and tokenizer"


def test_a_draft_that_knows_too_little_is_refused(tmp_path: Path) -> None:
    target = open_checkpoint(write_tiny_hf(tmp_path / "t"))
    with pytest.raises(ExportError, match="lacks 50 of the target's 320 tokens, the first is 270"):
        fit_draft(target, open_checkpoint(write_tiny_hf(tmp_path / "d", vocab=270)))
