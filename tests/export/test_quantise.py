"""Quantised graphs: weights, ranges, calibration, the QDQ writer, and the traps each of them is to catch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from htp_build import calibrated, cpu_session, quantised_file, random_text
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from packed_folders import write_quantised
from pair import make_pair

from hexgraft.export.htp.balance import find_balances
from hexgraft.export.htp.build import choose_mask
from hexgraft.export.htp.calibrate import calibrate
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.precision import FLOAT, Precision, make_precision
from hexgraft.export.htp.quantise import quantise
from hexgraft.export.htp.ranges import Ranges, load_ranges, save_ranges
from hexgraft.export.htp.rounding import exact_blocks, pack_nibbles, round_blocks
from hexgraft.export.htp.weights import QuantisedWeights
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.traces.replay import Figures, measure, prefill_passes, replay
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import ExportError, UsageError

WIDTH = 16


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("quantise"), noise=None)


@pytest.fixture(scope="module")
def network(bundle: Bundle) -> tuple[Network, Ranges]:
    return calibrated(bundle)


def figures_of(session: CpuSession, bundle: Bundle, tokens: list[int]) -> Figures:
    reference = CpuSession(bundle, widths=[WIDTH], whole=True)
    figures = Figures()
    for pair in replay(prefill_passes(tokens, len(tokens) - 1, WIDTH), reference, session):
        figures.add(measure(pair))
    return figures


# ------------------------------------------------------------------ precision


def test_keep_names_layers_by_prefix_and_pattern() -> None:
    precision = make_precision("w4a16", keep="layers.0,layers.*.down:w8,lm_head:fp16")
    assert precision.of("layers.0.qkv") == "w8"
    assert precision.of("layers.2.down") == "w8"
    assert precision.of("layers.10.qkv") == "w4"
    assert precision.of("head") == FLOAT
    assert precision.of("embed") == FLOAT
    assert make_precision("w8a16", keep="layers.1").of("layers.1.o") == FLOAT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "w3a16"}, "unknown precision 'w3a16'"),
        ({"name": "w4a16", "block": 24}, "--block 24 is not 0 or a power of two"),
        ({"name": "fp16", "block": 32}, "--block is for quantised precisions, not fp16"),
        ({"name": "fp16", "head": "w8"}, "--head is for quantised precisions"),
        ({"name": "fp16", "embed": "w8", "keep": "layers.0:w8"}, "--embed and --keep are for quantised"),
        ({"name": "w8a16", "head": "int8"}, "--head 'int8' is no weight format"),
        ({"name": "w8a16", "embed": "w4"}, "--embed w4 is not supported"),
        ({"name": "w8a16", "keep": "layers.0:int8"}, "unknown format 'int8'"),
        ({"name": "w8a16", "keep": "layers 0"}, "'layers 0' is no weight name"),
    ],
)
def test_a_precision_that_does_not_exist_is_refused(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_precision(**arguments)  # type: ignore[arg-type]
    assert words in caught.value.message
    assert caught.value.hint


def test_fp16_may_be_asked_for_by_name_at_fp16() -> None:
    precision = make_precision("fp16", block=0, embed="fp16", head="fp16", keep="layers.0,head:fp16")
    assert precision.of("head") == precision.of("embed") == FLOAT


# -------------------------------------------------------------------- weights


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
    node = onnx.helper.make_node(
        "DequantizeLinear", [t.name for t in stored.tensors], ["y"], axis=0, block_size=32
    )
    output = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, list(stored.tensors[0].dims))
    graph = onnx.helper.make_graph([node], "g", [], [output], list(stored.tensors))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    onnx.save(model, net.folder / "gptq.work.onnx")
    session = ort.InferenceSession(str(net.folder / "gptq.work.onnx"), providers=["CPUExecutionProvider"])
    (real,) = session.run(None, {})
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
    """Through ONNX Runtime's own DequantizeLinear, so that layout, packing and zero points are its."""
    net, _ = network
    axis = 1 if matrix == "embed" else 0
    stored = QuantisedWeights(net, "one.work.weights").get(matrix, format, axis, block, None)
    node = onnx.helper.make_node(
        "DequantizeLinear",
        [tensor.name for tensor in stored.tensors],
        ["y"],
        axis=stored.axis,
        **({"block_size": block} if block else {}),
    )
    shape = list(stored.tensors[0].dims)
    output = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph([node], "g", [], [output], list(stored.tensors))
    opset = onnx.helper.make_opsetid("", 23)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), net.folder / "one.work.onnx"
    )
    session = ort.InferenceSession(str(net.folder / "one.work.onnx"), providers=["CPUExecutionProvider"])
    (real,) = session.run(None, {})
    full = onnx.load(net.file)
    (original,) = (numpy_helper.to_array(t) for t in full.graph.initializer if t.name == matrix)
    assert np.linalg.norm(real - original) <= worst * np.linalg.norm(original)


def test_every_stored_weight_has_its_zero_points(network: tuple[Network, Ranges]) -> None:
    """Without them the QNN provider computes 4-bit weights silently wrong."""
    net, ranges = network
    for precision in (make_precision("w4a16"), make_precision("w4a16", block=0), make_precision("w8a16")):
        proto = onnx.load(quantised_file(net, ranges, precision, 8), load_external_data=False)
        tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        dequantised = [node for node in proto.graph.node if node.op_type == "DequantizeLinear"]
        weights = [node for node in dequantised if node.input[0] in tensors]
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


# --------------------------------------------------------- ranges, calibration


def test_calibration_text_that_is_too_short_is_refused(bundle: Bundle) -> None:
    with pytest.raises(ExportError, match="the calibration text has 100 tokens, at least 256 are needed"):
        calibrate(bundle, "target", [random_text(100)])


def test_calibration_sees_every_value_and_the_mask(network: tuple[Network, Ranges], tmp_path: Path) -> None:
    net, ranges = network
    ranges.check(net.values())
    assert ranges.low["attention_mask"] == net.model.mask_value
    assert ranges.high["layers.0.probabilities"] <= 1
    assert set(ranges.squares) == {projection.weight for projection in net.projections()}
    assert ranges.squares["layers.0.down"].shape == (96,)
    save_ranges(ranges, tmp_path / "r.npz")
    again = load_ranges(tmp_path / "r.npz")
    assert again.low == ranges.low
    assert again.high == ranges.high
    assert again.rows == ranges.rows


def test_ranges_that_name_other_values_are_refused(network: tuple[Network, Ranges]) -> None:
    """Ranges on the wrong tensors were the worst fault of generated names: a missing or an unused one ends
    the export."""
    net, ranges = network
    weights = QuantisedWeights(net, "r.work.weights")
    missing = ranges.copy()
    del missing.low["layers.1.down.out"]
    with pytest.raises(ExportError, match=r"first layers.1.down.out: the graph's value has no range"):
        quantise(net, net.static(8), make_precision("w8a16"), missing, weights)
    unused = ranges.copy()
    unused.widen("MatMul_17_output", 0, 1)
    with pytest.raises(ExportError, match="first MatMul_17_output: no value of the graph has this range"):
        quantise(net, net.static(8), make_precision("w8a16"), unused, weights)


def test_all_widths_share_one_table_of_encodings(network: tuple[Network, Ranges]) -> None:
    net, ranges = network
    tables = []
    for width in (1, 8, 32):
        proto = onnx.load(
            quantised_file(net, ranges, make_precision("w8a16"), width), load_external_data=False
        )
        tables.append(
            {
                tensor.name: numpy_helper.to_array(tensor).item()
                for tensor in proto.graph.initializer
                if tensor.name.endswith((":scale", ":zero")) and not tensor.external_data
            }
        )
    assert tables[0] == tables[1] == tables[2]
    # Two values a projection, and the two factors of what the last one reads.
    assert len(tables[0]) == 2 * ((2 * 4 + 2) * net.model.layers + 2)


def test_the_epsilon_of_every_norm_survives(network: tuple[Network, Ranges]) -> None:
    """An optimiser that drops an epsilon of 1e-8 or less makes logits wrong without a word."""
    net, ranges = network
    for precision in (make_precision("w8a16"), dataclasses.replace(make_precision("w8a16"), integer=True)):
        proto = onnx.load(quantised_file(net, ranges, precision, 8), load_external_data=False)
        norms = [node for node in proto.graph.node if node.op_type == "RMSNormalization"]
        assert len(norms) == 2 * net.model.layers + 1
        for node in norms:
            (epsilon,) = (a.f for a in node.attribute if a.name == "epsilon")
            assert epsilon == pytest.approx(1e-5)


def test_a_tiny_epsilon_survives_too(tmp_path: Path) -> None:
    tiny = make_pair(tmp_path, noise=None, eps=1e-9)
    net, ranges = calibrated(tiny)
    proto = onnx.load(quantised_file(net, ranges, make_precision("w8a16"), 8), load_external_data=False)
    found = [a.f for node in proto.graph.node for a in node.attribute if a.name == "epsilon"]
    assert found == pytest.approx([1e-9] * len(found))
    assert found


# ----------------------------------------------------------------- the graphs


@pytest.mark.parametrize(
    ("precision", "kl"),
    [
        (make_precision("w8a16"), 0.01),
        (make_precision("w8a16", embed="w8"), 0.01),
        (make_precision("w8a16", block=32), 0.01),
        (make_precision("w4a16"), 0.4),
        (make_precision("w4a16", block=0), 0.6),
        (make_precision("w4a16", keep="layers:w8"), 0.01),
        (make_precision("w8a16", keep="layers,head"), 1e-9),
    ],
    ids=["w8", "w8-embed", "w8-block", "w4-block", "w4-channel", "w4-kept-w8", "all-kept"],
)
def test_quantised_graphs_stay_near_the_float_graph(
    network: tuple[Network, Ranges], bundle: Bundle, precision: Precision, kl: float
) -> None:
    net, ranges = network
    session = cpu_session(bundle, quantised_file(net, ranges, precision, WIDTH), WIDTH)
    figures = figures_of(session, bundle, random_text(64, seed=9))
    assert figures.not_finite == 0
    assert figures.kl < kl


def test_an_all_integer_graph_stays_near_the_float_graph(
    network: tuple[Network, Ranges], bundle: Bundle
) -> None:
    net, ranges = network
    mask = choose_mask(ranges)
    assert -500 < mask <= -50
    narrowed = ranges.with_mask(net.model.mask_value, mask)
    precision = dataclasses.replace(make_precision("w8a16"), integer=True)
    session = cpu_session(bundle, quantised_file(net, narrowed, precision, WIDTH), WIDTH)
    session.model = msgspec.structs.replace(session.model, mask_value=mask)
    figures = figures_of(session, bundle, random_text(64, seed=9))
    assert figures.not_finite == 0
    assert figures.kl < 0.02


def test_an_all_integer_graph_computes_nothing_in_float(network: tuple[Network, Ranges]) -> None:
    """Between a DequantizeLinear and a QuantizeLinear stands one operator, everywhere."""
    net, ranges = network
    precision = dataclasses.replace(make_precision("w8a16"), integer=True)
    file = quantised_file(net, ranges.with_mask(net.model.mask_value, -100), precision, 8)
    graph = onnx.load(file, load_external_data=False).graph
    producers = {output: node for node in graph.node for output in node.output}
    consumers: dict[str, list[str]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node.op_type)
    numbers = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        for name in node.input:
            if name in producers:
                assert producers[name].op_type == "DequantizeLinear", (node.name, name)
            else:
                assert name == "input_ids" or numbers[name].data_type == TensorProto.INT64, (node.name, name)
        for name in node.output:
            assert consumers[name] == ["QuantizeLinear"], (node.name, name)
