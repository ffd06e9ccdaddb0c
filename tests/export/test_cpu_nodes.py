"""How many nodes a packed graph runs a layer, and that running fewer changes no bit of any family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from families import FAMILIES, save_family
from pair import packed_bundle
from processor import AVX512
from tiny import write_tiny_gguf

from hexgraft.export.cpu import graph
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import Floats, causal

TOKENS = np.random.default_rng(5).integers(3, 300, 44).tolist()


class AsBuilt:
    """In place of HeadsFirst: heads as the decoder's own graph turns them."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        yield node


def passes(bundle: Bundle, width: int) -> Floats:
    """Logits of every position, in passes of `width` rows, then all keys and values that were stored."""
    session = CpuSession(bundle, threads=1)
    found = []
    for start in range(0, len(TOKENS), width):
        part = TOKENS[start : start + width]
        rows = session.forward(part, range(start, start + len(part)), causal(start, len(part)))
        found += [rows.logits(row) for row in range(len(part))]
        session.store(range(len(part)), range(start, start + len(part)))
    saved = session.save(len(TOKENS))
    return np.concatenate([*found, saved.keys.ravel(), saved.values.ravel()])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gives_the_bits_of_the_graph_as_built(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save_family(tmp_path / "m", name)
    ours = packed_bundle(checkpoint, tmp_path / "ours", "w4a8", 128)
    monkeypatch.setattr(graph, "HeadsFirst", AsBuilt)
    built = packed_bundle(checkpoint, tmp_path / "built", "w4a8", 128)
    found = [passes(ours, width) for width in (1, 8)]
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[0], passes(built, 1))
    np.testing.assert_array_equal(found[1], passes(built, 8))
    if AVX512:
        np.testing.assert_array_equal(*found)


def nodes(bundle: Bundle, folder: Path) -> int:
    """Of the graph that the runtime makes of a bundle's."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    file = bundle.file(bundle.graph("target", "cpu").file)
    ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return len(onnx.load(folder / "optimised.onnx", load_external_data=False).graph.node)


@pytest.mark.parametrize(
    ("quant", "precision", "most"),
    [
        ("Q8_0", "fp32", 33),
        ("Q8_0", "w8", 35),
        ("Q8_0", "w8a8", 40),
        ("Q4_0", "w4", 31),
        ("Q4_0", "w4a8", 40),
        ("Q4_1", "w4", 47),
        ("Q4_1", "w4a8", 52),
    ],
)
def test_nodes_a_layer_are_bounded(tmp_path: Path, quant: str, precision: str, most: int) -> None:
    """In SmolLM2's shape of a layer: grouped heads, no biases, no norms of heads."""
    counts = []
    for layers in (2, 3):
        checkpoint = write_tiny_gguf(tmp_path / f"{layers}.gguf", quant=quant, layers=layers)
        folder = tmp_path / str(layers)
        counts.append(nodes(packed_bundle(checkpoint, folder, precision, 128), tmp_path))
    assert 0 < counts[1] - counts[0] <= most
