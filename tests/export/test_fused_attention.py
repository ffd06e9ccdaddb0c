"""Fused attention: one operator a layer over a cache that the rows of a pass lie behind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from command import error_of, hexgraft
from heads import write_head
from pair import make_pair
from tiny import write_tiny_hf

from hexgraft.export.cpu.graph import PRECISIONS
from hexgraft.export.writer import ExportOptions, export_bundle, write_manifest
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.manifest import JOINED_LAYOUT, KV_LAYOUT
from hexgraft.host.session import causal, prefill, tree_visibility
from hexgraft.models.attention import CHOSEN, FUSED
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import BundleError, DecodeError
from hexgraft.models.head_checkpoint import open_draft

PROMPT = [40, 51, 7, 260, 33, 12, 99, 301, 5, 77]


def pair(folder: Path, attention: str, precision: str = "fp32") -> Bundle:
    folder.mkdir()
    return make_pair(folder, options=ExportOptions((1, 8, 16), 256, precision=precision, attention=attention))


def operators(bundle: Bundle, role: str) -> list[str]:
    proto = onnx.load(bundle.file(bundle.graph(role, "cpu").file), load_external_data=False)
    return [node.op_type for node in proto.graph.node]


def text(bundle: Bundle, drafter: str, size: int) -> list[int]:
    made = make_drafter(drafter, bundle, lambda: CpuSession(bundle, "draft", threads=1))
    decoder = Decoder(CpuSession(bundle, threads=1), made, DecodeOptions(60, size))
    decoder.begin(PROMPT)
    for _ in decoder.rounds():
        pass
    return decoder.tokens


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_pass_is_that_of_plain_operators(tmp_path: Path, precision: str) -> None:
    """Where activations are rounded, sums in another order tip some of them over."""
    bundles = [pair(tmp_path / attention, attention, precision) for attention in (CHOSEN, FUSED)]
    for role in ("target", "draft"):
        plain, fused = (CpuSession(bundle, role, threads=1) for bundle in bundles)
        assert fused.model.kv_layout == JOINED_LAYOUT
        layers = fused.model.layers
        assert operators(bundles[1], role).count("GroupQueryAttention") == layers
        assert len(operators(bundles[1], role)) < len(operators(bundles[0], role)) - 10 * layers
        for session in (plain, fused):
            list(prefill(session, PROMPT, 0, len(PROMPT)))
        n, seen = len(PROMPT), np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]], np.bool_)
        passes = [
            session.forward([9, 4, 6, 2], [n, n + 1, n + 1, n + 2], tree_visibility(n, seen))
            for session in (plain, fused)
        ]
        for row in range(4):
            expected = passes[0].logits(row)
            tolerance = (0.05 if precision.endswith("a8") else 1e-5) * float(np.abs(expected).max())
            np.testing.assert_allclose(passes[1].logits(row), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("drafter", "size"), [("lookup", 8), ("levels", 16), ("chain", 4)])
def test_trees_give_the_tokens_of_plain_decoding_in_fp32(tmp_path: Path, drafter: str, size: int) -> None:
    bundle, plain = pair(tmp_path / "fused", FUSED), pair(tmp_path / "plain", CHOSEN)
    expected = text(bundle, "none", 1)
    assert len(expected) == len(PROMPT) + 60
    assert text(bundle, drafter, size) == expected == text(plain, "none", 1)


def test_a_head_drafts_as_it_does_with_plain_operators(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "target", layers=4)
    target, found = open_checkpoint(folder), []
    draft = open_draft(write_head(tmp_path / "head", folder, rows=90), target)
    for attention in (CHOSEN, FUSED):
        options = ExportOptions((1, 8, 16), 256, attention=attention)
        export_bundle(target, tmp_path / attention, draft=draft, options=options, report=lambda step: None)
        found.append(text(open_bundle(tmp_path / attention), "levels", 8))
    assert found[0] == found[1]


def test_saved_rows_go_from_one_layout_to_the_other(tmp_path: Path) -> None:
    plain, fused = (CpuSession(pair(tmp_path / name, name)) for name in (CHOSEN, FUSED))
    list(prefill(plain, PROMPT, 0, len(PROMPT)))
    n = len(PROMPT)
    fused.restore(plain.save(n))
    there, here = (session.forward([8], [n], causal(n, 1)).logits(0) for session in (fused, plain))
    np.testing.assert_allclose(there, here, atol=1e-5)
    back, expected = fused.save(n), plain.save(n)
    assert (back.keys == expected.keys).all()
    assert (back.values == expected.values).all()


def test_a_row_that_sees_a_later_one_is_refused(tmp_path: Path) -> None:
    session = CpuSession(pair(tmp_path / "fused", FUSED))
    with pytest.raises(DecodeError, match="a row sees a later one") as refused:
        session.forward([1, 2], [1, 0], tree_visibility(0, np.ones((2, 2), np.bool_)))
    assert refused.value.hint == "let parents stand before their children"


@pytest.mark.parametrize(("made", "claimed"), [(FUSED, KV_LAYOUT), (CHOSEN, JOINED_LAYOUT)])
def test_a_graph_of_another_layout_than_the_manifest_says_is_refused(
    tmp_path: Path, made: str, claimed: str
) -> None:
    bundle = pair(tmp_path / "b", made)
    bundle.manifest.target.kv_layout = claimed
    write_manifest(bundle.manifest, bundle.path)
    with pytest.raises(BundleError, match="is not the graph that the bundle's manifest describes"):
        CpuSession(open_bundle(bundle.path))


def test_graphs_of_the_npu_have_no_joined_cache(tmp_path: Path) -> None:
    bundle = pair(tmp_path / "b", FUSED)
    graph = bundle.manifest.target.graphs[0]
    bundle.manifest.target.graphs.append(
        msgspec.structs.replace(graph, provider="htp", width=1, capacity=256)
    )
    write_manifest(bundle.manifest, bundle.path)
    with pytest.raises(BundleError, match="graphs of the NPU in a cache layout of the CPU's"):
        open_bundle(bundle.path)


def test_the_command_makes_it_and_inspect_tells(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    words = ("export", folder, "--context", "64", "--cpu-attention", "fused", "-o")
    result = hexgraft(*words, tmp_path / "b", "--draft", folder, "--cpu-precision", "w8a8")
    assert result.exit_code == 0, result.stderr
    bundle = open_bundle(tmp_path / "b")
    for role in ("target", "draft"):
        assert bundle.model(role).kv_layout == JOINED_LAYOUT
        assert "Softmax" not in operators(bundle, role)
    assert "joined" in hexgraft("inspect", tmp_path / "b").stdout
    refused = hexgraft(*words, tmp_path / "n", "--target", "htp", "--soc", "SM8650")
    assert (refused.exit_code, error_of(refused)[1]) == (2, "leave out --cpu-attention fused or --target htp")


def test_heads_of_odd_sizes_are_told_what_to_do(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m", heads=4, kv_heads=2, head_dim=12)
    refused = hexgraft("export", folder, "-o", tmp_path / "b", "--context", "64", "--cpu-attention", "fused")
    assert refused.exit_code == 1
    message, hint = error_of(refused)
    assert message == "fused attention takes heads whose size is a multiple of 8, here it is 12"
    assert hint == "leave out --cpu-attention fused"
    assert not (tmp_path / "b").exists()
