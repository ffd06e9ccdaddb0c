"""Ctrl-C in commands whose next run takes up what was done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command import error_of, hexgraft

from hexgraft.models.errors import INTERRUPTED


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("push.open_bundle", ("push", "bundle")),
        ("pull_trace.open_phone", ("pull-trace",)),
        ("train_draft._check_output", ("train-draft", "target", "-o", "head")),
        ("export.export_htp", ("export", "target", "-o", "out", "--target", "htp", "--soc", "SM8650")),
    ],
)
def test_what_goes_on_says_so(
    pair: Path, monkeypatch: pytest.MonkeyPatch, place: str, words: tuple[str, ...]
) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"hexgraft.host.cli.{place}", pressed)
    checkpoint = str(pair / "target-checkpoint")
    done = hexgraft(*(checkpoint if word == "target" else word for word in words))
    assert error_of(done) == ("interrupted", "the same command goes on where this one was")
    assert done.exit_code == INTERRUPTED
