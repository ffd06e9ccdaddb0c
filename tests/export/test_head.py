"""Draft heads exported beside a target: their graph against an oracle in torch, and what a bundle holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import save_family
from heads import Oracle, read_head, write_head
from numpy.typing import NDArray
from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import States, Visibility, causal, prefill
from hexgraft.models.attention import CHOSEN, FUSED, STACKED
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import BundleError, DecodeError
from hexgraft.models.head_checkpoint import HeadCheckpoint, open_draft

TOKENS = np.random.default_rng(8).integers(0, 320, 24).tolist()
HEADS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "eagle3-reduced": {"rows": 100},
    "eagle3-reduced-target-rows": {"rows": 100, "own_head": False},
    "eagle3-target-head": {"own_head": False},
    "eagle3-own-embedding-and-width": {"hidden": 96, "heads": 6, "kv_heads": 3},
    "eagle3-prefixed": {"prefix": "model.", "heads": 8, "kv_heads": 1, "own_embed": True},
    "eagle": {"kind": "eagle"},
    "eagle-two-layers": {"kind": "eagle", "layers": 2, "bias": True, "kv_heads": 4},
}


def export_head(
    folder: Path, *, tied: bool = True, layers: int = 4, attention: str = STACKED, **head: Any
) -> tuple[Bundle, Oracle]:
    target = write_tiny_hf(folder / "target", layers=layers, tied=tied)
    path = write_head(folder / "head", target, **head)
    checkpoint = open_checkpoint(target)
    draft = open_draft(path, checkpoint)
    assert isinstance(draft, HeadCheckpoint)
    options = ExportOptions((1, 8, 16), 128, attention=attention)
    export_bundle(checkpoint, folder / "bundle", draft=draft, options=options, report=lambda step: None)
    bundle = open_bundle(folder / "bundle")
    bundle.verify()
    return bundle, Oracle(path, target, read_head(path))


def features_of(bundle: Bundle) -> NDArray[np.float32]:
    session = CpuSession(bundle)
    found: list[NDArray[np.float32]] = []
    list(prefill(session, TOKENS, 0, len(TOKENS), lambda start, rows: found.append(rows.hiddens())))
    return np.concatenate(found)


def states(
    bundle: Bundle, features: NDArray[np.float32] | None, hidden: NDArray[np.float32] | None
) -> States:
    """Rows of either kind, the other part zero."""
    draft = bundle.model("draft")
    assert draft.head is not None
    count = len(features if features is not None else hidden)  # type: ignore[arg-type]
    if draft.head.feature_size == 0:
        return States(np.empty((count, 0), np.float32), features if hidden is None else hidden)
    sizes = (draft.head.feature_size, draft.hidden)
    empty = [np.zeros((count, size), np.float32) for size in sizes]
    return States(empty[0] if features is None else features, empty[1] if hidden is None else hidden)


@pytest.mark.parametrize(("widths", "attention"), [(None, CHOSEN), ((1, 8, 16), STACKED), (None, FUSED)])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_prefill_decode_and_tree_passes_equal_torch(
    name: str, tied: bool, widths: tuple[int, ...] | None, attention: str, tmp_path: Path
) -> None:
    bundle, oracle = export_head(tmp_path, tied=tied, attention=attention, **HEADS[name])
    features, count = features_of(bundle), 14
    session = CpuSession(bundle, "draft", widths=widths, whole=widths is not None)
    shown = TOKENS[1 : count + 1]
    positions = list(range(count))
    seen = np.tri(count, dtype=np.bool_)
    logits, own = oracle.run(shown, oracle.mix(features[:count]), positions, seen)
    got, given = [], []
    for start, end in ((0, 8), (8, 9), (9, count)):  # a prefill, a step, a catch-up of several rows
        session.feed(states(bundle, features[start:end], None))
        rows = session.forward(shown[start:end], positions[start:end], causal(start, end - start))
        session.store(range(end - start), range(start, end))
        got += [rows.logits(row) for row in range(end - start)]
        given.append(rows.hiddens())
    np.testing.assert_allclose(np.stack(got), logits.numpy(), atol=1e-3, rtol=0)
    np.testing.assert_allclose(np.concatenate(given), own.numpy(), atol=1e-3, rtol=0)

    # A tree of two levels below the last row: two children, then one each, on the head's own states.
    last = np.concatenate(given)[-1]
    session.feed(states(bundle, None, np.stack([last, last])))
    rows = session.forward([5, 6], [count, count], Visibility(count, np.eye(2, dtype=np.bool_), *_none(2)))
    session.store([0, 1], [count, count + 1])
    first, level = [rows.logits(row) for row in range(2)], rows.hiddens()
    slots = np.array([count, count + 1], np.int32)
    session.feed(states(bundle, None, level[[1, 0]]))
    rows = session.forward(
        [7, 8],
        [count + 1] * 2,
        Visibility(count, np.eye(2, dtype=np.bool_), slots, np.array([[False, True], [True, False]])),
    )
    second = [rows.logits(row) for row in range(2)]
    for node, parent, row in ((7, 1, 0), (8, 0, 1)):
        path = [(5, 6)[parent], node]
        chain, state = oracle.mix(features[:count]), own[-1:]
        for depth in range(2):
            size = count + depth + 1
            chain = oracle.torch.cat((chain, state))
            found, out = oracle.run(
                [*shown, *path[: depth + 1]], chain, list(range(size)), np.tri(size, dtype=np.bool_)
            )
            state = out[-1:]
            expected = found[-1].numpy()
            np.testing.assert_allclose(first[parent] if depth == 0 else second[row], expected, atol=1e-3)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize(
    ("family", "scale", "cap"), [("granite", 1 / 3, None), ("gemma2", 1.0, 30.0), ("gemma3-capped", 1.0, 3.0)]
)
def test_heads_of_targets_that_scale_or_cap_logits(
    family: str, scale: float, cap: float | None, kind: str, tmp_path: Path
) -> None:
    """EAGLE-1's states are the target's, and as likely; EAGLE-3's were trained on the product itself. Tokens
    reach both as they lie in the embedding, and layers are Llama's: so their authors train them."""
    pytest.importorskip("transformers")
    target = save_family(tmp_path / "target", family)
    path = write_head(tmp_path / "head", target, kind, own_head=False)
    checkpoint = open_checkpoint(target)
    draft = open_draft(path, checkpoint)
    assert isinstance(draft, HeadCheckpoint)
    options = ExportOptions((1, 8, 16), 128)
    export_bundle(checkpoint, tmp_path / "b", draft=draft, options=options, report=lambda step: None)
    bundle, count = open_bundle(tmp_path / "b"), 14
    features, oracle = features_of(bundle)[:count], Oracle(path, target, read_head(path))
    shown, seen = TOKENS[1 : count + 1], np.tri(count, dtype=np.bool_)
    product, own = oracle.run(shown, oracle.mix(features), list(range(count)), seen)
    session = CpuSession(bundle, "draft")
    session.feed(states(bundle, features, None))
    rows = session.forward(shown, range(count), causal(0, count))
    expected = product.numpy()
    if kind == "eagle":
        expected = expected * scale if cap is None else np.tanh(expected * scale / cap) * cap
    np.testing.assert_allclose(rows.hiddens(), own.numpy(), atol=1e-3, rtol=1e-4)
    np.testing.assert_allclose(
        np.stack([rows.logits(row) for row in range(count)]), expected, atol=1e-3, rtol=1e-4
    )


def _none(rows: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    return np.empty(0, np.int32), np.empty((rows, 0), np.bool_)


def test_the_target_s_matrices_are_stored_once(tmp_path: Path) -> None:
    bundle, _ = export_head(tmp_path, rows=64, own_head=False)
    draft = bundle.model("draft")
    assert draft.graphs[0].file == "target/head.onnx"
    assert draft.features == []
    assert bundle.target.features == [1, 2, 2]
    assert draft.head is not None
    assert (draft.head.kind, draft.head.rows, draft.head.feature_size) == ("eagle3", 64, 192)
    weights = bundle.manifest.files["target/head.weights"].size
    assert draft.parameters * 4 <= weights < draft.parameters * 4 + 20 * 4096
    assert draft.parameters < 320 * 64 + 64 * 64 + 128 * 64 * 4 + 64 * 192  # no embedding, 64 rows of a head


def test_own_matrices_are_used_and_equal_ones_too(tmp_path: Path) -> None:
    bundle, _ = export_head(tmp_path, own_embed=True)
    shared, _ = export_head(tmp_path / "other", own_embed=False)
    assert bundle.model("draft").parameters - shared.model("draft").parameters == 320 * 64


def test_a_pass_without_states_is_refused(tmp_path: Path) -> None:
    bundle, _ = export_head(tmp_path)
    session = CpuSession(bundle, "draft")
    with pytest.raises(DecodeError, match="was not given the states"):
        session.forward([1], [0], causal(0, 1))
    session.feed(States(np.zeros((2, 192), np.float32), np.zeros((2, 64), np.float32)))
    with pytest.raises(DecodeError, match="was not given the states"):
        session.forward([1], [0], causal(0, 1))
    target = CpuSession(bundle)
    target.feed(States(np.zeros((1, 192), np.float32), np.zeros((1, 64), np.float32)))
    with pytest.raises(DecodeError, match="is no draft head"):
        target.forward([1], [0], causal(0, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head": {"kind": "medusa", "feature_size": 192, "rows": 320}}, "medusa"),
        ({"head": {"kind": "eagle3", "feature_size": 64, "rows": 320}}, "reads 64 numbers"),
        ({"head": {"kind": "eagle3", "feature_size": 192, "rows": 100}}, "which 100 tokens"),
        ({"head": {"kind": "eagle3", "feature_size": 192, "rows": 100, "tokens": "no"}}, "tokens in no"),
        ({"features": [1]}, "features for its draft"),
    ],
)
def test_manifests_of_heads_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    import json

    bundle, _ = export_head(tmp_path)
    file = bundle.path / "bundle.json"
    manifest = json.loads(file.read_text())
    manifest["draft"].update(change)
    file.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle.path)
