"""Drafts whose CPU graph is of another precision than their target's, heads above all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from command import error_of, hexgraft
from fitted_head import write_fitted_head
from heads import write_head
from tiny import write_tiny_hf

from hexgraft.export.cpu.graph import PACKED
from hexgraft.export.head import HEAD_WEIGHTS
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.session import States, causal
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import HeadCheckpoint, open_draft

TEXT = np.random.default_rng(4).integers(3, 320, 20).tolist()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("target") / "m", layers=4)


def bundle_of(folder: Path, target: Path, head: Path, precision: str, draft: str | None) -> Bundle:
    checkpoint = open_checkpoint(target)
    opened = open_draft(head, checkpoint)
    assert isinstance(opened, HeadCheckpoint)
    options = ExportOptions((1, 8, 16), 256, precision=precision, draft_precision=draft)
    export_bundle(checkpoint, folder, draft=opened, options=options, report=lambda step: None)
    return open_bundle(folder)


def weights(bundle: Bundle) -> int:
    return (bundle.path / "target" / HEAD_WEIGHTS).stat().st_size


def rounds(bundle: Bundle) -> tuple[list[int], int]:
    target, draft = (CpuSession(bundle, role, threads=1) for role in ("target", "draft"))
    decoder = Decoder(target, make_drafter("levels", bundle, lambda: draft), DecodeOptions(60, 8))
    decoder.begin(TEXT)
    return decoder.tokens, sum(1 for _ in decoder.rounds())


@pytest.mark.parametrize("kind", ["eagle3", "eagle"])
@pytest.mark.parametrize("precision", PACKED)
def test_a_packed_head_computes_what_the_one_in_fp32_does(
    target: Path, kind: str, precision: str, tmp_path: Path
) -> None:
    """Its logits and states within what 8 and 4 bits leave."""
    head = write_head(tmp_path / "head", target, kind)
    found = []
    for name, draft in (("a", "fp32"), ("b", precision)):
        bundle = bundle_of(tmp_path / name, target, head, "fp32", draft)
        assert bundle.graph("draft", "cpu").precision == draft
        assert bundle.graph("target", "cpu").precision == "fp32"
        session, entry = CpuSession(bundle, "draft", threads=1), bundle.model("draft")
        rng = np.random.default_rng(1)
        features = rng.normal(size=(6, entry.head.feature_size if entry.head else 0)).astype(np.float32)
        session.feed(States(features, rng.normal(size=(6, entry.hidden)).astype(np.float32)))
        rows = session.forward(TEXT[:6], range(6), causal(0, 6))
        found.append((np.stack([rows.logits(row) for row in range(6)]), rows.hiddens()))
    tolerance = 0.03 if precision.startswith("w8") else 0.35
    for exact, packed in zip(*found, strict=True):
        assert 0 < np.abs(packed - exact).max() < tolerance * np.abs(exact).max()


def test_beside_a_target_in_fp32_a_packed_head_borrows_the_embedding_alone(
    target: Path, tmp_path: Path
) -> None:
    """It has the output matrix in blocks, and a gather needs none."""
    head = write_head(tmp_path / "head", target, "eagle", own_head=False)
    sizes = {
        pair: weights(bundle_of(tmp_path / "-".join(pair), target, head, *pair))
        for pair in (("fp32", "fp32"), ("fp32", "w8a8"), ("w8a8", "w8a8"), ("w8a8", "fp32"))
    }
    matrix = 320 * 64
    assert 1.0 < (sizes["w8a8", "w8a8"] - sizes["fp32", "w8a8"]) / matrix < 1.5
    assert 8 * matrix <= sizes["w8a8", "fp32"] - sizes["fp32", "fp32"] < 8.5 * matrix
    assert sizes["fp32", "w8a8"] < sizes["fp32", "fp32"]


@pytest.mark.parametrize("precision", ["fp32", "w8a8"])
def test_a_draft_of_any_precision_drafts_for_any_target(target: Path, precision: str, tmp_path: Path) -> None:
    """The tokens are the target's own; a fitted head takes hardly more rounds for them in 8 bits."""
    head = write_fitted_head(tmp_path / "head", target, tmp_path / "work")
    exact, packed = (
        rounds(bundle_of(tmp_path / draft, target, head, precision, draft)) for draft in ("fp32", "w8a8")
    )
    assert packed[0] == exact[0]
    assert exact[1] < 60
    assert packed[1] <= exact[1] + 3


def test_a_draft_model_has_the_precision_that_was_asked_for(target: Path, tmp_path: Path) -> None:
    words = ("export", target, "-o", tmp_path / "b", "--draft", target, "--context", "64")
    result = hexgraft(*words, "--cpu-precision", "w8a8", "--cpu-draft-precision", "fp32")
    assert result.exit_code == 0, result.stderr
    bundle = open_bundle(tmp_path / "b")
    found = [bundle.graph(role, "cpu").precision for role in ("target", "draft")]
    assert found == ["w8a8", "fp32"]
    files = [tmp_path / "b" / role / "model.weights" for role in ("target", "draft")]
    assert files[1].stat().st_size > 2 * files[0].stat().st_size


def test_only_targets_pay_for_equal_bits(target: Path, tmp_path: Path) -> None:
    """Sums in float64 are what makes them."""
    head = write_head(tmp_path / "head", target, rows=90)
    for name, draft in (("with-model", target), ("with-head", head)):
        words = ("export", target, "-o", tmp_path / name, "--draft", draft, "--context", "64")
        result = hexgraft(*words, "--cpu-precision", "w8a8")
        assert result.exit_code == 0, result.stderr
        bundle, found = open_bundle(tmp_path / name), []
        for role in ("target", "draft"):
            proto = onnx.load(bundle.file(bundle.graph(role, "cpu").file), load_external_data=False)
            casts = [node.attribute[0].i for node in proto.graph.node if node.op_type == "Cast"]
            found.append(casts.count(onnx.TensorProto.DOUBLE))
        assert found == [3 * open_checkpoint(target).config.layers, 0]


def test_heads_that_do_not_fit_in_blocks_are_told_what_to_do(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", target, ffn=80)
    words = ("export", target, "-o", tmp_path / "b", "--draft", head, "--cpu-precision", "w8a8")
    message, hint = error_of(hexgraft(*words))
    assert message == "the draft: w8a8 on the CPU takes blocks of 32 inputs, layers.0.down has 80"
    assert hint == "use --cpu-draft-precision fp32"
    assert not (tmp_path / "b").exists()
    result = hexgraft(*words, "--cpu-draft-precision", "fp32", "--context", "64")
    assert result.exit_code == 0, result.stderr


def test_a_precision_of_no_draft_or_for_the_npu_is_refused(target: Path, tmp_path: Path) -> None:
    words = ("export", target, "-o", tmp_path / "b", "--cpu-draft-precision", "w8a8")
    result = hexgraft(*words)
    assert (result.exit_code, error_of(result)[1]) == (2, "add --draft, or leave it out")
    result = hexgraft(*words, "--draft", target, "--target", "htp", "--soc", "SM8650")
    assert (result.exit_code, error_of(result)[1]) == (2, "leave out --cpu-draft-precision or --target htp")
    assert not (tmp_path / "b").exists()
