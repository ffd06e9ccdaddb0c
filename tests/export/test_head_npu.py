"""Draft heads on the NPU: compiled, compared with the CPU's, and drafting on the emulator."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from command import error_of, hexgraft
from fitted_head import write_fitted_head
from heads import write_head
from htp_build import needs_qnn, random_text, short_text
from tiny import write_tiny_hf

from hexgraft.export.htp import layers
from hexgraft.export.htp.calibrate import calibrate
from hexgraft.export.htp.head_text import HeadText, text_features
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.parity import THRESHOLDS, StateParity, compare, failures, gate_passes
from hexgraft.export.htp.parts import split
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.quantise import quantise
from hexgraft.export.htp.weights import QuantisedWeights
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.head_checkpoint import open_draft

KINDS = ("eagle", "eagle3")
WIDTHS = (1, 8)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("tiny") / "target", layers=4)


@pytest.fixture(scope="module")
def heads(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each kind: EAGLE-1's agrees with the target, EAGLE-3's proposes 90 tokens."""
    folder = tmp_path_factory.mktemp("heads")
    eagle = write_fitted_head(folder / "eagle", target, folder / "work")
    return {"eagle": eagle, "eagle3": write_head(folder / "eagle3", target, rows=90, own_head=False)}


@pytest.fixture(scope="module")
def bundles(target: Path, heads: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both for the CPU."""
    folder, checkpoint = tmp_path_factory.mktemp("bundles"), open_checkpoint(target)
    for kind, head in heads.items():
        draft = open_draft(head, checkpoint)
        options = ExportOptions(WIDTHS, 128)
        export_bundle(checkpoint, folder / kind, draft=draft, options=options, report=lambda step: None)
    return {kind: open_bundle(folder / kind) for kind in heads}


def compiled(target: Path, head: Path, folder: Path, *more: str) -> Bundle:
    """A bundle of one width, whose binaries serve phone and emulator alike: that of 16 rows, at which the
    vendor's library is known to compute what feeds integers wrongly."""
    words = ("export", target, "-o", folder / "b", "--draft", head, "--widths", "16", "--context", "64")
    words += ("--target", "htp", "--soc", "SM8650", "--parity-rows", "40")
    if "fp16" not in more:
        words += ("--calibration", short_text(folder))
    done = hexgraft(*words, *more)
    assert done.exit_code == 0, done.stderr
    told = re.findall(r"^draft: the head agrees in [\d.]+% of \d+ rows", done.stderr, re.M)
    assert len(told) == ("--min-agreement" in more)
    return open_bundle(folder / "b")


def decode(bundle: Bundle, backend: str, drafter: str) -> tuple[list[int], int]:
    """12 tokens of greedy decoding, and in how many rounds."""
    target = open_session(bundle, "target", backend, widths=[16], whole=True)
    draft = open_session(bundle, "draft", backend, widths=[16], whole=True)
    options = DecodeOptions(max_tokens=12, tree_size=8 if drafter != "none" else 1)
    decoder = Decoder(target, make_drafter(drafter, bundle, lambda: draft), options)
    decoder.begin(random_text(20))
    rounds = list(decoder.rounds())
    target.close()
    draft.close()
    return [token for current in rounds for token in current.tokens], len(rounds)


@needs_qnn
@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        ("eagle", "fp16"),
        ("eagle3", "w8a16"),
        pytest.param("eagle", "w8a16", marks=pytest.mark.slow),
        pytest.param("eagle3", "fp16", marks=pytest.mark.slow),
        pytest.param("eagle3", "w4a16", marks=pytest.mark.slow),
    ],
)
def test_trees_of_a_head_on_the_emulator_give_its_plain_text(
    kind: str, precision: str, target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    """The quantised ones with the embedding at 8 bits, which the target's file holds."""
    eight = ("--embed", "w8", "--min-agreement", "0.5")
    more = {"fp16": (), "w8a16": eight, "w4a16": ("--embed", "w8", "--block", "16")}[precision]
    bundle = compiled(target, heads[kind], tmp_path, "--precision", precision, *more)
    bundle.verify()
    built = [graph for graph in bundle.model("draft").graphs if graph.provider == "htp-sim"]
    assert [(graph.width, graph.precision) for graph in built] == [(16, precision)]
    assert built[0].file.startswith("draft/htp/")
    figures = bundle.manifest.parity[built[0].file]
    assert figures["passed"] == 1
    assert figures["rows"] >= 40
    assert "perplexity_other" not in figures
    tokens, rounds = decode(bundle, "htp-sim", "levels")
    assert tokens == decode(bundle, "htp-sim", "none")[0]
    if kind == "eagle":
        assert rounds < 12
        assert abs(rounds - decode(bundle, "cpu", "levels")[1]) <= 1
    shown = hexgraft("inspect", bundle.path)
    assert built[0].file in "".join(shown.stdout.split())


@needs_qnn
def test_a_chip_without_fp16_is_refused_once_and_before_anything_is_done(
    target: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    words = ("export", target, "-o", tmp_path / "b", "--draft", heads["eagle"], "--target", "htp")
    chips = ("--soc", "SM8650", "--soc", "SM7750")
    message, hint = error_of(hexgraft(*words, *chips, "--precision", "w8a16"))
    assert message.startswith("a draft head reads its target in fp16, which SM7750")
    assert "name only chips with fp16" in hint
    message, hint = error_of(hexgraft(*words, *chips))
    assert "--precision fp16 needs fp16 arithmetic" in message
    assert "a draft head reads its target in fp16, which SM7750" in message
    assert hint.startswith("use --precision w8a16; leave out --draft")
    assert list(tmp_path.iterdir()) == []


@needs_qnn
def test_blocks_that_do_not_divide_a_head_are_refused_before_anything_is_done(
    target: Path, tmp_path: Path
) -> None:
    """The head's feed-forward has 80 numbers, the target's 96."""
    head = write_head(tmp_path / "head", target, ffn=80)
    words = ("export", target, "-o", tmp_path / "b", "--target", "htp", "--soc", "SM8650")
    words += ("--precision", "w4a16", "--draft", head)
    message, hint = error_of(hexgraft(*words))
    assert message == "blocks of 32 weights do not divide the 80 inputs of layers.0.down"
    assert hint == "use --block 16"
    assert list(tmp_path.iterdir()) == [head]


# ---------------------------------------------------------------- calibration


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_calibrated_on_the_states_it_drafts_with(kind: str, bundles: dict[str, Bundle]) -> None:
    bundle = bundles[kind]
    ranges = calibrate(bundle, "draft", [random_text(300)])
    ranges.check(Network(bundle, "draft").values())
    features = text_features(bundle, random_text(300)[:100])
    name = "features" if kind == "eagle3" else "hidden_in"
    assert ranges.low[name] <= features[:90].min()
    assert ranges.high[name] >= features[:90].max()
    assert ranges.high["hidden_in"] > 0
    assert ranges.high["hidden_in"] >= 0.5 * ranges.high["hidden"] or kind == "eagle"
    assert ranges.rows > 300


def test_a_large_target_runs_in_parts_and_gives_the_same_states(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, text = bundles["eagle3"], random_text(300)
    expected = text_features(bundle, text[:60])
    monkeypatch.setattr(layers, "_LARGE", 0)
    monkeypatch.setattr(layers, "_PART", 1)
    np.testing.assert_allclose(text_features(bundle, text[:60]), expected, rtol=0, atol=1e-4)
    ranges = calibrate(bundle, "draft", [text])
    ranges.check(Network(bundle, "draft").values())
    assert ranges.high["features"] > 0


@pytest.mark.parametrize(("keep", "kind"), [(None, onnx.TensorProto.FLOAT), ("fc:w8", onnx.TensorProto.INT8)])
def test_what_reads_the_target_stays_float_unless_told(
    keep: str | None, kind: int, bundles: dict[str, Bundle]
) -> None:
    bundle = bundles["eagle3"]
    network = Network(bundle, "draft")
    ranges = calibrate(bundle, "draft", [random_text(300)])
    weights = QuantisedWeights(network, "draft.work.weights")
    precision = make_precision("w8a16", keep=keep).for_head()
    proto = quantise(network, network.static(8), precision, ranges, weights)
    types = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    nodes = {node.name: node for node in proto.graph.node}

    def stored(projection: str) -> int:
        """The type a projection's matrix is stored in."""
        names = (projection, f"{projection}:raw")
        product = next(n for n in nodes.values() if n.op_type == "MatMul" and n.output[0] in names)
        read = product.input[1]
        return types[read if read in types else nodes[read].input[0]]

    assert stored("fc.out") == kind
    assert stored("layers.0.qkv.out") == onnx.TensorProto.INT8


# --------------------------------------------------------------------- parity


@pytest.mark.parametrize("kind", KINDS)
def test_the_gate_passes_the_same_head_and_sees_another(kind: str, bundles: dict[str, Bundle]) -> None:
    bundle = bundles[kind]
    text = random_text(80)
    passes = [
        replace(one, follows=(None,) * len(one.tokens)) for one in gate_passes(text[1:], WIDTHS, 40, 320)
    ]
    features = text_features(bundle, text)

    def figures(scale: float) -> list[str]:
        """What is missed by a head whose own states come out of a graph that multiplies them."""
        reference, other = (CpuSession(bundle, "draft", widths=WIDTHS, whole=True) for _ in range(2))
        fed = HeadText(bundle, reference, other, features, 8)

        def feed(forced: Any) -> None:
            fed._states[1] *= np.float32(scale)
            fed.feed(forced)

        total, by_width = compare(passes, reference, other, before=feed, watch=fed.watch)
        assert set(by_width) == set(WIDTHS)
        return list(failures(total, THRESHOLDS["fp16"]))

    assert figures(1.0) == []
    assert figures(-3.0) != []


def test_states_that_overflow_are_counted(bundles: dict[str, Bundle]) -> None:
    class Given:
        def __init__(self, rows: np.ndarray[Any, Any]) -> None:
            self._rows = rows

        def hiddens(self) -> np.ndarray[Any, Any]:
            return self._rows

    ours = np.ones((3, 4), np.float32)
    theirs = ours.copy()
    theirs[1, 2] = np.inf
    theirs[0, 0] = 1.1
    states = StateParity()
    states.take(None, Given(ours), Given(theirs))  # type: ignore[arg-type]
    assert states.not_finite == 1
    assert states.sqnr_db == pytest.approx(10 * np.log10(8 / 0.01), abs=1e-3)


# ---------------------------------------------------------------------- parts


def test_states_for_a_head_pass_between_parts_and_no_layer_is_there_twice(bundles: dict[str, Bundle]) -> None:
    """EAGLE-3 reads after layers 1, 2 and 2 of 4: what the last part gives was made in earlier ones."""
    bundle = bundles["eagle3"]
    network = Network(bundle, "target")
    cuts = ["embedded", "layers.1.out", "layers.2.out"]
    whole = network.static(8)
    parts = split(whole, cuts, network.model.hidden, 8)
    names = [node.name for part in parts for node in part.graph.node if node.name.startswith("layers.")]
    assert len(names) == len(set(names))
    (giving,) = (i for i, part in enumerate(parts) if "hidden" in {v.name for v in part.graph.output})
    assert giving >= 1
    rng = np.random.default_rng(3)
    values: dict[str, np.ndarray[Any, Any]] = {}
    for value in whole.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT32:
            values[value.name] = rng.integers(3, 300, shape).astype(np.int32)
        else:
            values[value.name] = (rng.normal(size=shape) * 0.5).astype(np.float32)
    wanted = run(whole, network.folder, values)
    for part in parts:
        values |= run(part, network.folder, values)
    for name, expected in wanted.items():
        np.testing.assert_allclose(values[name], expected, rtol=0, atol=2e-4)


def run(proto: onnx.ModelProto, folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = [value.name for value in session.get_outputs()]
    given = {value.name: values[value.name] for value in session.get_inputs()}
    return dict(zip(outputs, session.run(outputs, given), strict=True))
