"""Weights as the NPU gets them: rounded well, packed as ONNX reads them, each with its zero points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from htp_build import calibrated, quantised_file
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from packed_folders import write_quantised
from pair import make_pair

from hexgraft.export.htp.balance import find_balances
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.ranges import Ranges
from hexgraft.export.htp.rounding import exact_blocks, pack_nibbles, round_blocks
from hexgraft.export.htp.weights import QuantisedWeights, Stored
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import ExportError


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Ranges]:
    return calibrated(make_pair(tmp_path_factory.mktemp("quantise"), noise=None))


def dequantised(stored: Stored, block: int, file: Path) -> NDArray[np.float32]:
    """Through ONNX Runtime's own DequantizeLinear, so that layout, packing and zero points are its; `file`
    is to lie beside the weights."""
    node = onnx.helper.make_node(
        "DequantizeLinear",
        [tensor.name for tensor in stored.tensors],
        ["y"],
        axis=stored.axis,
        **({"block_size": block} if block else {}),
    )
    output = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, list(stored.tensors[0].dims))
    graph = onnx.helper.make_graph([node], "g", [], [output], list(stored.tensors))
    opset = onnx.helper.make_opsetid("", 23)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), file)
    session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (real,) = session.run(None, {})
    return real


@given(st.integers(0, 2**32 - 1), st.sampled_from([16, 32]), st.integers(1, 5))
def test_blocks_at_4_bits_are_at_least_as_good_as_rounding_to_the_largest(
    seed: int, block: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    blocks = (rng.standard_normal((count, block, 6)) * rng.exponential(size=(count, 1, 6))).astype(np.float32)
    steps, scales = round_blocks(blocks, None, "w4")
    assert steps.min() >= -8
    assert steps.max() <= 7
    assert (scales > 0).all()
    plain = np.abs(blocks).max(axis=1, keepdims=True) / 7
    naive = np.square(np.clip(np.rint(blocks / plain), -8, 7) * plain - blocks).sum()
    assert np.square(steps * scales[:, None] - blocks).sum() <= naive * (1 + 1e-4)


@given(seed=st.integers(0, 2**32 - 1), group=st.sampled_from([1, 4]))
def test_blocks_that_are_quantised_already_are_not_rounded_again(seed: int, group: int) -> None:
    """Integers from -8 to 7 times half-precision scales, which a few blocks may share."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-8, 8, (4, 32, 6)).astype(np.float32)
    integers[0, :, 0] = 0
    integers[1, :, 1] = 2 * (integers[1, :, 1] // 2)
    scales = np.repeat(rng.uniform(0.001, 0.1, (4 // group, 6)).astype(np.float16), group, axis=0)
    blocks = integers * scales.astype(np.float32)[:, None]
    steps, found = round_blocks(blocks, None, "w4")
    np.testing.assert_allclose(steps * found[:, None], blocks, rtol=3e-7, atol=0)
    other = blocks.copy()
    other[2, 3, 4] *= 1.01
    fits = exact_blocks(other)[2]
    assert fits.sum() == fits.size - (integers[2, 3, 4] != 0)
    assert fits[2, 4] == (integers[2, 3, 4] == 0)


def test_packed_folders_reach_the_npu_as_they_are(tmp_path: Path) -> None:
    """GPTQ around zero: every projection at w4a16 stands for the very numbers of the folder."""
    exact = write_quantised(tmp_path / "m", "gptq", middle=True)
    options = ExportOptions((1, 8), 128)
    export_bundle(open_checkpoint(tmp_path / "m"), tmp_path / "b", options=options, report=lambda step: None)
    net, ranges = calibrated(open_bundle(tmp_path / "b"))
    precision = make_precision("w4a16")
    assert not find_balances(net, precision, ranges.copy())
    quantised_file(net, ranges, precision, 8)
    stored = QuantisedWeights(net, "gptq.work.weights").get("layers.1.down", "w4", 0, 32, None)
    real = dequantised(stored, 32, net.folder / "gptq.work.onnx")
    np.testing.assert_allclose(real.T, exact["model.layers.1.mlp.down_proj.weight"], rtol=3e-7, atol=1e-9)


def test_a_block_of_zeros_stays_zero() -> None:
    for format in ("w8", "w4"):
        steps, scales = round_blocks(np.zeros((1, 16, 2), np.float32), None, format)
        assert not steps.any()
        assert (scales > 0).all()


@given(st.lists(st.integers(-8, 7), min_size=2, max_size=40).filter(lambda values: len(values) % 2 == 0))
def test_nibbles_are_packed_as_onnx_reads_them(values: list[int]) -> None:
    array = np.array(values, np.int8)
    tensor = TensorProto(name="t", data_type=TensorProto.INT4, dims=array.shape)
    tensor.raw_data = pack_nibbles(array).tobytes()
    assert numpy_helper.to_array(tensor).astype(np.int8).tolist() == values


@pytest.mark.parametrize(("format", "block", "worst"), [("w8", 0, 0.01), ("w4", 32, 0.14), ("w4", 0, 0.2)])
@pytest.mark.parametrize("matrix", ["layers.1.down", "embed"])
def test_stored_weights_read_back_near_the_originals(
    network: tuple[Network, Ranges], matrix: str, format: str, block: int, worst: float
) -> None:
    net, _ = network
    axis = 1 if matrix == "embed" else 0
    stored = QuantisedWeights(net, "one.work.weights").get(matrix, format, axis, block, None)
    real = dequantised(stored, block, net.folder / "one.work.onnx")
    full = onnx.load(net.file)
    (original,) = (numpy_helper.to_array(t) for t in full.graph.initializer if t.name == matrix)
    assert np.linalg.norm(real - original) <= worst * np.linalg.norm(original)


def test_every_stored_weight_has_its_zero_points(network: tuple[Network, Ranges]) -> None:
    """Without them the QNN provider computes 4-bit weights silently wrong."""
    net, ranges = network
    for precision in (make_precision("w4a16"), make_precision("w4a16", block=0), make_precision("w8a16")):
        proto = onnx.load(quantised_file(net, ranges, precision, 8), load_external_data=False)
        tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        nodes = [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
        weights = [node for node in nodes if node.input[0] in tensors]
        assert len(weights) == 4 * net.model.layers + 1
        for node in weights:
            integers, scale, zero = (tensors[name] for name in node.input)
            assert zero.data_type == integers.data_type
            assert zero.dims == scale.dims


def test_a_block_that_does_not_divide_is_refused(network: tuple[Network, Ranges]) -> None:
    net, ranges = network
    with pytest.raises(
        ExportError, match=r"--block 64 does not divide the 96 inputs of layers.0.down"
    ) as caught:
        quantised_file(net, ranges, make_precision("w4a16", block=64), 8)
    assert caught.value.hint is not None
    assert "--block 0" in caught.value.hint
