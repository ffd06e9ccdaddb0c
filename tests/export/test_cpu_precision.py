"""Weights of 8 and 4 bits on the CPU: the numbers a bundle stores, and the exports that store them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from command import error_of, hexgraft
from numpy.typing import NDArray
from pair import packed_bundle
from tensors import whole
from tiny import write_tiny_gguf, write_tiny_hf

from hexgraft.export.cpu.graph import PACKED, PackedGraph, pack
from hexgraft.export.cpu.packing import Packed, Packing, pack_rows, round_rows, unpack
from hexgraft.export.sizes import estimate
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import causal
from hexgraft.models.attention import CHOSEN
from hexgraft.models.checkpoint import Checkpoint, open_checkpoint
from hexgraft.models.decoder import build_decoder
from hexgraft.models.errors import ExportError

Floats = NDArray[np.float32]
TOKENS = [40, 51, 7, 260, 33, 12, 99, 301, 5, 77]


# ------------------------------------------------------------------ numbers


def stored(rows: Floats, bits: int, rounded: bool = False) -> Floats:
    packing = Packing(*rows.shape, bits, rounded)
    return unpack(pack_rows(round_rows(rows, bits), packing), packing)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("bits", "levels"), [(4, 15), (8, 254)])
def test_rounding_is_to_the_nearest_level(bits: int, levels: int, rounded: bool) -> None:
    rows = np.random.default_rng(1).standard_normal((7, 96)).astype(np.float32)
    rows[2, :32] = 0
    rows[3, 32:64] = 5.0
    rows[4] *= 1e-12
    cut = rows.reshape(7, 3, 32)
    ranges = np.maximum(cut.max(-1), 0) - np.minimum(cut.min(-1), 0)
    if bits == 8:
        ranges = 2 * np.abs(cut).max(-1)
    # A zero point is rounded too, so that 4 bits may miss the ends of a block by half a level more.
    bound = ranges / levels * (1.01 if bits == 4 else 0.51)
    error = np.abs(stored(rows, bits, rounded) - rows).reshape(7, 3, 32).max(-1)
    assert (error <= bound).all()
    assert not stored(rows, bits, rounded)[2, :32].any()
    assert (error > 0).any()


# ------------------------------------------------------------------ bundles


class Dequantised:
    """The checkpoint whose numbers are those a packed bundle stands for."""

    def __init__(self, bundle: Bundle, checkpoint: Checkpoint) -> None:
        self.weights = numbers(bundle, checkpoint)
        self._checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def blocks(self, name: str) -> Iterator[Floats]:
        yield self.weights[name]


def numbers(bundle: Bundle, checkpoint: Checkpoint) -> dict[str, Floats]:
    """Every tensor of a bundle's target by its canonical name, as numpy reads and dequantises it."""
    file = bundle.file(bundle.graph("target", "cpu").file)
    proto = onnx.load(file)
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    graph = build_decoder(checkpoint.config.within(bundle.target.context), "w", name="target")
    packed = pack(graph, checkpoint, bundle.graph("target", "cpu").precision, steady=True)
    assert isinstance(packed, PackedGraph)
    found = {}
    for weight in graph.weights:
        whole = arrays.get(weight.name)
        if whole is None:
            parts = [arrays.get(f"{weight.name}.{part}") for part in ("blocks", "scales", "zeros", "rests")]
            rests = None if parts[3] is None else parts[3].T
            whole = unpack(Packed(*parts[:3], rests), packed.packings[weight.name])  # type: ignore[arg-type]
        start = 0
        for part in weight.parts:
            rows = len(next(iter(checkpoint.blocks(part.tensor))))
            found[part.tensor] = whole[start : start + rows] / np.float32(part.scale)
            start += rows
    return found


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("w8", 2e-5), ("w4", 2e-5), ("w8a8", 0.1), ("w4a8", 0.1), ("w4h4a8", 0.1)]
)
@pytest.mark.parametrize("tied", [True, False])
def test_a_pass_is_that_of_the_dequantised_weights(
    tmp_path: Path, precision: str, tied: bool, tolerance: float
) -> None:
    folder = write_tiny_hf(tmp_path / "m", family="qwen2", tied=tied)
    twin = check_passes(folder, tmp_path, precision, tolerance)
    exact = whole(open_checkpoint(folder), "layers.1.down")
    level = 2 / (15 if precision.startswith("w4") else 254)
    error = np.abs(twin.weights["layers.1.down"] - exact).max()
    assert 0 < error < level * np.abs(exact).max()


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_an_embedding_have_no_minima(tmp_path: Path, tied: bool) -> None:
    """Q4_1's minima are further inputs of a product, which the gather of rows has not: it is rounded anew."""
    file = write_tiny_gguf(tmp_path / "m.gguf", quant="Q4_1", tied=tied)
    twin = check_passes(file, tmp_path, "w4h4a8", 0.1)
    exact = whole(open_checkpoint(file), "embed")
    np.testing.assert_allclose(twin.weights["embed"], stored(exact, 4), rtol=0, atol=1e-7)
    assert np.abs(twin.weights["embed"] - exact).max() > 1e-4
    if not tied:
        head = whole(open_checkpoint(file), "head")
        np.testing.assert_allclose(twin.weights["head"], head, rtol=0, atol=0.005 * np.abs(head).max())


def check_passes(source: Path, tmp_path: Path, precision: str, tolerance: float) -> Dequantised:
    """Passes of a packed bundle against those of one in fp32 with the numbers that it stores."""
    checkpoint = open_checkpoint(source)
    bundle = packed_bundle(source, tmp_path / "b", precision)
    assert bundle.graph("target", "cpu").precision == precision
    twin = Dequantised(bundle, checkpoint)
    export_bundle(
        twin,  # type: ignore[arg-type]
        tmp_path / "twin",
        options=ExportOptions((1, 8, 16), 256),
        report=lambda step: None,
    )
    sessions = [CpuSession(one, "target", threads=1) for one in (bundle, open_bundle(tmp_path / "twin"))]
    for count in (1, 3, 10):
        ours, theirs = (s.forward(TOKENS[:count], range(count), causal(0, count)) for s in sessions)
        for row in range(count):
            expected = theirs.logits(row)
            largest = float(np.abs(expected).max())
            np.testing.assert_allclose(ours.logits(row), expected, rtol=0, atol=tolerance * largest)
    return twin


@pytest.mark.parametrize(
    ("quant", "precision"), [("Q8_0", "w8"), ("Q4_0", "w4"), ("Q4_1", "w4"), ("Q8_0", "w4"), ("Q4_1", "w8")]
)
@pytest.mark.parametrize("activations", ["", "a8"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_files_own_blocks_are_kept(
    tmp_path: Path, quant: str, precision: str, activations: str, family: str
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, family=family)
    checkpoint = open_checkpoint(path)
    found = numbers(packed_bundle(path, tmp_path / "b", precision + activations), checkpoint)
    for name in ("embed", *(f"layers.1.{part}" for part in ("q", "k", "v", "o", "gate", "up", "down"))):
        exact = whole(checkpoint, name)
        error = np.abs(found[name] - exact).max() / np.abs(exact).max()
        bits = 8 if precision == "w8" or name == "embed" else 4
        if (quant == "Q8_0") == (bits == 8):
            # Among rounded activations, what a minimum adds to a block is good to 8 bits.
            assert error < (1e-3 if quant == "Q4_1" and activations else 1e-6), name
        else:
            assert 1e-5 < error < 0.15, name


# ------------------------------------------------------------------ export


@pytest.mark.parametrize("precision", PACKED)
def test_estimates_are_the_sizes_of_bundles(tmp_path: Path, precision: str) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    bundle = packed_bundle(folder, tmp_path / "b", precision)
    size = bundle.manifest.files["target/model.weights"].size
    sizes = estimate(open_checkpoint(folder).config, 256)
    estimates = {row.precision: row.weights for row in sizes.estimates}
    assert estimates[precision] == size
    assert size < estimates["fp32"] / (2.5 if precision.startswith("w8") else 3.5)
    assert bundle.target.parameters == sizes.parameters


KILLED = """
import os, signal, sys
from pathlib import Path
from hexgraft.export import weights
from hexgraft.export.weights_file import WeightsFile
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.models.checkpoint import open_checkpoint
weights.SYNC_BYTES = 1
behind = WeightsFile.sync_behind
def at_once(file, then):  # so that it is known what is on the disk when the export is killed
    behind(file, then)
    file._wait_for_sync()
WeightsFile.sync_behind = at_once
checkpoint = open_checkpoint(Path(sys.argv[1]))
blocks = checkpoint.blocks
def counted(name):
    if name == "layers.2.gate":
        os.kill(os.getpid(), signal.SIGKILL)
    return blocks(name)
checkpoint.blocks = counted
options = ExportOptions((1, 8, 16), 256, precision="w4", attention="chosen")
export_bundle(checkpoint, Path(sys.argv[2]), options=options, report=lambda step: None)
"""


def test_a_killed_export_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    fresh = packed_bundle(folder, tmp_path / "fresh", "w4")
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "b")]
    killed = subprocess.run(command, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL
    checkpoint, read = open_checkpoint(folder), list[str]()
    blocks = checkpoint.blocks
    monkeypatch.setattr(checkpoint, "blocks", lambda name: read.append(name) or blocks(name))
    options = ExportOptions((1, 8, 16), 256, precision="w4", attention=CHOSEN)
    export_bundle(checkpoint, tmp_path / "b", options=options, report=lambda step: None)
    assert read == ["layers.2.gate", "layers.2.up", "layers.2.down", "norm"]
    bundle = open_bundle(tmp_path / "b")
    bundle.verify()
    assert bundle.manifest.files == fresh.manifest.files


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    narrow = write_tiny_hf(tmp_path / "m", hidden=48)
    with pytest.raises(ExportError, match="blocks of 32 inputs, embed has 48"):
        packed_bundle(narrow, tmp_path / "b", "w4")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cpu-precision", "w3"], "'w3' is none of its choices"),
        (["--cpu-precision", "w8a16"], "'w8a16' is none of its choices"),
        (["--cpu-precision", "w4", "--target", "htp", "--soc", "SM8650"], "made from the CPU's in fp32"),
    ],
)
def test_options_that_clash_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = hexgraft("export", write_tiny_hf(tmp_path / "m"), "-o", tmp_path / "b", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "b").exists()


def test_the_command_exports_and_says_the_precision(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m")
    result = hexgraft("export", folder, "-o", tmp_path / "b", "--cpu-precision", "w4", "--context", "64")
    assert result.exit_code == 0, error_of(result)
    assert "cpu w4" in hexgraft("inspect", tmp_path / "b").stdout
