"""The parity gate: its passes, its thresholds, and where it says the fault lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pair import make_pair

from hexgraft.export.htp.parity import THRESHOLDS, bushy_tree, compare, failures, gate_passes
from hexgraft.export.htp.worst_layer import describe
from hexgraft.export.writer import ExportOptions
from hexgraft.host.cpu_session import CpuSession

TOKENS = [int(token) for token in np.random.default_rng(2).integers(8, 300, 200)]


@pytest.mark.parametrize("widths", [(1,), (1, 8), (1, 8, 16, 32), (1, 16, 128)])
def test_passes_run_every_width_and_continue_one_text(widths: tuple[int, ...]) -> None:
    passes = gate_passes(TOKENS, widths, 64, 320)
    needed = {next(width for width in widths if width >= len(forced.tokens)) for forced in passes}
    assert needed == set(widths)
    assert {forced.phase for forced in passes} >= {"prefill", "decode"}
    assert any(forced.phase == "tree" for forced in passes) == (len(widths) > 1)
    stored: list[int] = []
    for forced in passes:
        assert forced.context == len(stored)
        stored += [forced.tokens[row] for row in forced.accepted]
    assert stored == TOKENS[: len(stored)]


@pytest.mark.parametrize("length", [5, 40, 70])
def test_a_short_context_has_fewer_passes_but_some(length: int) -> None:
    passes = gate_passes(TOKENS[:length], (1, 8, 32), 128, 320)
    assert passes
    assert max(max(forced.positions) for forced in passes) < length


def test_trees_branch_beside_the_text() -> None:
    tree, path = bushy_tree(TOKENS[:20], 16, 320)
    assert len(tree) <= 16
    assert tree.tokens[path].tolist() == TOKENS[: len(path)]
    assert all(len(tree.children(node)) == 2 for node in path[:-1])


def test_the_same_session_passes_and_a_wrong_one_is_told_in_words(tmp_path: Path) -> None:
    bundle = make_pair(tmp_path, noise=0.5, options=ExportOptions((1, 8), 256))
    passes = gate_passes(TOKENS, (1, 8), 40, 320)

    def session(role: str) -> CpuSession:
        return CpuSession(bundle, role, widths=(1, 8), whole=True)

    total, by_width = compare(passes, session("target"), session("target"))
    assert set(by_width) == {1, 8}
    assert sum(figures.rows for figures in by_width.values()) == total.rows
    assert list(failures(total, THRESHOLDS["fp16"])) == []
    total, _ = compare(passes, session("target"), session("draft"))
    words = list(failures(total, THRESHOLDS["fp16"]))
    assert any("top-1 agreement" in word for word in words)
    assert any(word.startswith("KL ") for word in words)


def test_the_worst_half_layer_is_the_one_that_adds_most_noise() -> None:
    ratios = {
        "layers.0.attended": 70.0,
        "layers.0.out": 60.0,
        "layers.1.attended": 30.0,
        "layers.1.out": 8.0,
        "layers.2.attended": 7.5,
        "layers.2.out": 7.4,
    }
    assert describe(ratios) == (
        "most noise comes from the feed-forward of layers.1, where SQNR falls from 30.0 dB to 8.0 dB"
    )
    overflow = {"layers.0.attended": -200.0, "layers.0.out": -200.0}
    assert (
        describe(overflow) == "most noise comes from the attention of layers.0, where SQNR falls to -200.0 dB"
    )
