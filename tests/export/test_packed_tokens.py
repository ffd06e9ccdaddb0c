"""Weights of 8 and 4 bits on the CPU: a row has its logits, and a text its tokens, in a tree or plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from heads import write_head
from numpy.typing import NDArray
from pair import make_pair, packed_bundle
from processor import needs_avx512
from tiny import write_tiny_hf

from hexgraft.export.cpu.graph import PACKED
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session, Visibility, causal
from hexgraft.models.attention import CHOSEN
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import open_draft

Floats = NDArray[np.float32]
TOKENS = [40, 51, 7, 260, 33, 12, 99, 301, 5, 77]


def tokens(bundle: Bundle, target: Session, draft: Session, drafter: str, sampling: Sampling) -> list[int]:
    options = DecodeOptions(max_tokens=60, tree_size=12, sampling=sampling)
    decoder = Decoder(target, make_drafter(drafter, bundle, lambda: draft, sampling=sampling), options)
    decoder.begin(TOKENS[:6])
    list(decoder.rounds())
    return decoder.tokens


@pytest.mark.parametrize("precision", PACKED)
def test_trees_give_the_tokens_of_plain_decoding(tmp_path: Path, precision: str) -> None:
    bundle = make_pair(
        tmp_path, options=ExportOptions((1, 8, 16), 256, precision=precision, attention=CHOSEN)
    )
    target, draft = CpuSession(bundle, "target", threads=1), CpuSession(bundle, "draft", threads=1)
    for sampling in (Sampling(), Sampling(temperature=0.8, seed=5)):
        plain = tokens(bundle, target, draft, "none", sampling)
        assert len(set(plain)) > 4
        for drafter in ("lookup", "levels", "best-first"):
            assert tokens(bundle, target, draft, drafter, sampling) == plain


@pytest.mark.parametrize("precision", PACKED)
def test_a_draft_head_gives_the_tokens_of_plain_decoding(tmp_path: Path, precision: str) -> None:
    """Its target has one more output, and nothing of the packed graph may bear the name of that."""
    folder = write_tiny_hf(tmp_path / "target", layers=4)
    target = open_checkpoint(folder)
    head = write_head(tmp_path / "head", folder, rows=90, own_head=False)
    options = ExportOptions((1, 8, 16), 256, precision=precision, attention=CHOSEN)
    draft = open_draft(head, target)
    export_bundle(target, tmp_path / "bundle", draft=draft, options=options, report=lambda step: None)
    bundle = open_bundle(tmp_path / "bundle")
    for role in ("target", "draft"):
        graph = onnx.load(bundle.file(bundle.graph(role, "cpu").file), load_external_data=False).graph
        named = [value.name for value in (*graph.input, *graph.initializer)]
        named += [name for node in graph.node for name in node.output if name]
        assert len(set(named)) == len(named)
    sessions = CpuSession(bundle, "target", threads=1), CpuSession(bundle, "draft", threads=1)
    plain = tokens(bundle, *sessions, "none", Sampling())
    for drafter in ("chain", "levels", "best-first", "lookup+levels", "static"):
        assert tokens(bundle, *sessions, drafter, Sampling()) == plain


@pytest.mark.parametrize("precision", ["w8", "w4"])
def test_a_rows_logits_hardly_depend_on_the_width(tmp_path: Path, precision: str) -> None:
    """Without a8 no activation is rounded: that would show as differences a thousand times as large."""
    bundle = make_pair(
        tmp_path, noise=None, options=ExportOptions((1, 8, 16), 256, precision=precision, attention=CHOSEN)
    )
    session = CpuSession(bundle, "target", threads=1)
    alone = session.forward(TOKENS[:1], [0], causal(0, 1)).logits(0)
    for count in (2, 5, 10):
        row = session.forward(TOKENS[:count], range(count), causal(0, count)).logits(0)
        np.testing.assert_allclose(row, alone, rtol=0, atol=3e-6 * float(np.abs(alone).max()))


@pytest.mark.parametrize("precision", ["w8a8", pytest.param("w4a8", marks=needs_avx512)])
@pytest.mark.parametrize(
    "sizes", [{}, {"kv_heads": 4}, {"family": "qwen2", "kv_heads": 1, "tied": False}], ids=str
)
def test_rounded_activations_give_the_same_bits_at_every_width(
    tmp_path: Path, precision: str, sizes: dict[str, Any]
) -> None:
    """Whether a row's ancestors are slots or rows: half a unit in the last place would tip roundings over."""
    folder = write_tiny_hf(tmp_path / "m", **sizes)
    session = CpuSession(packed_bundle(folder, tmp_path / "b", precision), "target", threads=1)
    text = np.random.default_rng(2).integers(3, 300, 48).tolist()

    def logits(width: int) -> Floats:
        session.reset()
        found = []
        for start in range(0, len(text), width):
            part = text[start : start + width]
            rows = session.forward(part, range(start, start + len(part)), causal(start, len(part)))
            found += [rows.logits(row) for row in range(len(part))]
            session.store(range(len(part)), range(start, start + len(part)))
        return np.array(found)

    plain = logits(1)
    for width in (2, 5, 8, 16):
        np.testing.assert_array_equal(logits(width), plain)


def test_a_rows_siblings_do_not_change_its_bits(tmp_path: Path) -> None:
    """A path through a tree, its ancestors far apart among the rows of strangers, against the same as a
    chain."""
    folder = write_tiny_hf(tmp_path / "m")
    session = CpuSession(packed_bundle(folder, tmp_path / "b", "w4a8"), "target", threads=1)
    chain = session.forward(TOKENS[:4], range(4), causal(0, 4))
    alone = chain.logits(3)
    tree = [TOKENS[0], 9, TOKENS[1], 8, 7, TOKENS[2], 6, TOKENS[3]]
    parents = [-1, 0, 0, 1, 1, 2, 2, 5]
    sees = np.eye(8, dtype=bool)
    depths = [0] * 8
    for node in range(1, 8):
        sees[node] |= sees[parents[node]]
        depths[node] = depths[parents[node]] + 1
    nothing = np.zeros(0, np.intp)
    visible = Visibility(0, sees, nothing, np.zeros((8, 0), bool))
    np.testing.assert_array_equal(session.forward(tree, depths, visible).logits(7), alone)
