"""Quantised graphs: precisions, ranges, calibration, the QDQ writer, and the traps each is to catch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import onnx
import pytest
from htp_build import calibrated, cpu_session, quantised_file, random_text
from onnx import TensorProto, numpy_helper
from pair import make_pair

from hexgraft.export.htp.build import choose_mask
from hexgraft.export.htp.calibrate import calibrate
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.precision import FLOAT, Precision, make_precision
from hexgraft.export.htp.quantise import quantise
from hexgraft.export.htp.ranges import Ranges, load_ranges, save_ranges
from hexgraft.export.htp.weights import QuantisedWeights
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.traces.replay import Figures, measure, prefill_passes, replay
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
