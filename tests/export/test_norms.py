"""Additions and norms as one operator: where, and that rows do not hang on one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from families import FAMILIES, save_family
from heads import write_head
from tiny import write_tiny_hf

from hexgraft.export.cpu.norms import join_norms
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.models.attention import CHOSEN, FUSED, STACKED
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.config import ModelConfig
from hexgraft.models.decoder import build_decoder
from hexgraft.models.graph import GraphBuilder
from hexgraft.models.head_checkpoint import open_draft

JOINED = "SkipSimplifiedLayerNormalization"


def nodes(proto: onnx.ModelProto, *ops: str) -> list[onnx.NodeProto]:
    return [node for node in proto.graph.node if node.op_type in ops]


def proto_of(bundle: Bundle, role: str) -> onnx.ModelProto:
    return onnx.load(bundle.file(bundle.graph(role, "cpu").file), load_external_data=False)


def expected(config: ModelConfig) -> int:
    """The norm before each block but the first, and the last; one behind a block norms no sum."""
    return 2 * config.layers


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("attention", [CHOSEN, FUSED])
def test_every_norm_of_the_residual_stream_is_joined(name: str, attention: str, tmp_path: Path) -> None:
    config = open_checkpoint(save_family(tmp_path / "m", name)).config
    proto = build_decoder(config, "w", name="x", features=(0, 1, config.layers), attention=attention).proto
    before, values = nodes(proto, "RMSNormalization"), [name for n in proto.graph.node for name in n.output]
    join_norms(proto)
    assert len(nodes(proto, JOINED)) == expected(config)
    assert len(nodes(proto, JOINED, "RMSNormalization")) == len(before)
    after = [name for node in proto.graph.node for name in node.output if name]
    assert sorted(after) == sorted(values)
    known = {value.name for value in (*proto.graph.input, *proto.graph.initializer)}
    for node in proto.graph.node:
        assert known.issuperset(name for name in node.input if name), "a value is read before it is there"
        known.update(node.output)


@pytest.mark.parametrize(("attention", "joined"), [(STACKED, False), (CHOSEN, False), (FUSED, True)])
@pytest.mark.parametrize("precision", ["fp32", "w8", "w4a8"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_graphs_with_fused_attention_are_joined(
    attention: str, joined: bool, precision: str, kind: str, tmp_path: Path
) -> None:
    folder = write_tiny_hf(tmp_path / "m", layers=4)
    target = open_checkpoint(folder)
    head = write_head(tmp_path / "head", folder, kind=kind)
    options = ExportOptions((1, 8), 128, precision=precision, attention=attention)
    export_bundle(
        target, tmp_path / "b", draft=open_draft(head, target), options=options, report=lambda step: None
    )
    bundle = open_bundle(tmp_path / "b")
    found = [len(nodes(proto_of(bundle, role), JOINED)) for role in ("target", "draft")]
    # Of a head: the norm before its feed-forward; of EAGLE-3 also that of its state, and the last. At w8 a
    # row of the embedding is a sum itself.
    sums = precision == "w8"
    own = 1 if kind == "eagle" else 3 + sums
    assert found == ([2 * 4 + sums, own] if joined else [0, 0])


def test_a_row_is_the_same_among_others_and_a_biased_one_is_left() -> None:
    size, rows = 96, 9
    g = GraphBuilder("sums")
    x, y = g.input("x", (1, "T", size)), g.input("y", (1, "T", size))
    rng = np.random.default_rng(1)
    weight, bias = (g.constant(name, rng.normal(size=size).astype(np.float32)) for name in ("weight", "bias"))
    for name, other in (("sum", y), ("biased", bias)):
        g.output(name, (1, "T", size))
        g.output(name + ".normed", (1, "T", size))
        g.node("Add", [x, other], name)
        g.node("RMSNormalization", [name, weight], name + ".normed", axis=-1, epsilon=1e-2, stash_type=1)
    plain = g.build("").proto
    proto = onnx.ModelProto.FromString(plain.SerializeToString())
    join_norms(proto)
    assert [node.op_type for node in proto.graph.node] == [JOINED, "Add", "RMSNormalization"]
    options = ort.SessionOptions()
    before, after = (
        ort.InferenceSession(each.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for each in (plain, proto)
    )
    given = {name: rng.normal(size=(1, rows, size)).astype(np.float32) for name in ("x", "y")}
    names = ["sum", "sum.normed", "biased", "biased.normed"]
    whole = dict(zip(names, after.run(names, given), strict=True))
    for name, values in zip(names, before.run(names, given), strict=True):
        np.testing.assert_allclose(whole[name], values, rtol=1e-5, atol=1e-6)
    for row in range(rows):
        one = after.run(["sum", "sum.normed"], {key: value[:, row : row + 1] for key, value in given.items()})
        assert (one[0][0, 0] == whole["sum"][0, row]).all()
        assert (one[1][0, 0] == whole["sum.normed"][0, row]).all()
