"""What a training tells: sizes in its report, and its curves as a picture where matplotlib is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import hexgraft
from pair import write_pair

from hexgraft.export.train.report import draw_report, smoothed

pytest.importorskip("torch")

SMALL = ["--tokens", "600", "--texts", "24", "--new-tokens", "40", "--vocab", "64", "--batch", "512"]
SMALL += ["--epochs", "2", "--unroll", "2", "--full-precision", "--threads", "1"]
REPORT = {
    "losses": [9.0, 8.0, 7.0, 6.5],
    "measured_after_steps": [2, 4],
    "chain_when_measured": [1.1, 1.2],
    "acceptance_by_depth_and_rank": [[0.5, 0.1], [0.3, 0.1]],
    "parameters": 51456,
    "size": {"bytes": 106544, "rows": 64, "vocab": 320},
    "data": {"held_out_coverage": 0.5288},
}


def test_a_training_leaves_its_sizes_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, head = write_pair(tmp_path / "target", noise=None, layers=4), tmp_path / "head"
    done = hexgraft("train-draft", target, "-o", head, *SMALL)
    assert done.exit_code == 0, done.output
    assert "matplotlib" not in done.stderr
    assert (head / "report.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((head / "report.json").read_text())
    assert report["size"] == {"bytes": (head / "model.safetensors").stat().st_size, "rows": 64, "vocab": 320}

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else object())
    done = hexgraft("train-draft", target, "-o", head, *SMALL)
    assert done.exit_code == 0, done.output
    assert "pip install 'hexgraft[plot]'" in done.stderr.splitlines()[0]
    assert not (head / "report.png").exists(), "that of another training"


def test_a_picture_says_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hexgraft.export.train.report.PICTURE", "report.svg")
    with pytest.MonkeyPatch.context() as patch:
        import matplotlib

        patch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # text as text
        draw_report(REPORT, tmp_path)
    drawn = (tmp_path / "report.svg").read_text(encoding="utf-8")
    assert "0.1 million weights, 0.1 MB, 64 of 320 tokens, 52.9% of held-out text" in drawn
    for words in ("held-out prompts", "depth 2", "rank of the draft"):
        assert words in drawn


def test_losses_are_smoothed_over_those_before() -> None:
    assert smoothed([4.0, 2.0, 3.0]) == [4.0, 2.0, 3.0]
    assert smoothed([float(n) for n in range(100)])[:3] == [0.0, 0.5, 1.5]
