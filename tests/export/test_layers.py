"""Large models run a few layers at a time: the same numbers, and no more of the weights in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from htp_build import random_text
from pair import make_pair
from tiny import write_tiny_hf

from hexgraft.export.htp import layers
from hexgraft.export.htp.build import Build
from hexgraft.export.htp.calibrate import calibrate
from hexgraft.export.htp.layers import LayeredRuntime, float_runtime
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.plan import HtpOptions, Variant
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.htp.worst_layer import _run_cpu
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import causal
from hexgraft.host.traces.replay import prefill_passes, replay
from hexgraft.models.checkpoint import open_checkpoint

MEMORY = """
import re, sys
from pathlib import Path
from hexgraft.export.htp import layers
from hexgraft.export.htp.calibrate import calibrate
from hexgraft.host.bundle import open_bundle

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024

if len(sys.argv) > 2:
    layers._LARGE, layers._PART = 0, int(sys.argv[2])
bundle = open_bundle(Path(sys.argv[1]))
text = [8 + 7 * i % 290 for i in range(260)]
before = peak()
calibrate(bundle, "target", [text], threads=1)
print(peak() - before)
"""


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is large, and a part holds one layer or the head."""
    monkeypatch.setattr(layers, "_LARGE", 0)
    monkeypatch.setattr(layers, "_PART", 1)


def export(checkpoint: Path, folder: Path, context: int = 128) -> Bundle:
    options = ExportOptions((1, 8, 16), context)
    export_bundle(open_checkpoint(checkpoint), folder, options=options, report=lambda step: None)
    return open_bundle(folder)


def test_ranges_of_a_model_in_parts_are_those_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_pair(tmp_path, noise=None, layers=4)
    monkeypatch.setattr(layers, "_LARGE", 0)
    monkeypatch.setattr(layers, "_PART", 1 << 30)
    whole = calibrate(bundle, "target", [random_text(300)])
    monkeypatch.setattr(layers, "_PART", 1)
    parts = calibrate(bundle, "target", [random_text(300)])
    parts.check(Network(bundle, "target").values())
    assert (parts.low, parts.high, parts.rows) == (whole.low, whole.high, whole.rows)
    assert list(parts.squares) == list(whole.squares)
    for name, squares in whole.squares.items():
        np.testing.assert_array_equal(parts.squares[name], squares)
        np.testing.assert_array_equal(parts.peaks[name], whole.peaks[name])


def test_a_model_in_parts_gives_the_logits_of_the_whole(tmp_path: Path, in_parts: None) -> None:
    """Prefill in several passes, so that the cache and a window take part."""
    folder = write_tiny_hf(tmp_path / "m", family="mistral", layers=4)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": 24}))
    bundle = export(folder, tmp_path / "b")
    network = Network(bundle, "target")
    assert network.model.window == 24
    runtime = LayeredRuntime(network, 1)
    assert len(runtime._sessions) == 5
    session = CpuSession(bundle, widths=[16], runtime=runtime)
    reference = CpuSession(bundle, widths=[16])
    for pair in replay(prefill_passes(random_text(60), 59, 16), reference, session):
        np.testing.assert_allclose(pair.other, pair.reference, rtol=1e-4, atol=1e-4)


def test_states_that_a_later_part_gives_are_passed_on(tmp_path: Path, in_parts: None) -> None:
    """A target of draft heads gives the states of several layers in one output."""
    folder = write_tiny_hf(tmp_path / "m", layers=4)
    options = ExportOptions((1, 8), 128, features=(0, 2, 3))
    export_bundle(open_checkpoint(folder), tmp_path / "b", options=options, report=lambda step: None)
    bundle = open_bundle(tmp_path / "b")
    session = CpuSession(bundle, runtime=float_runtime(Network(bundle, "target"), 1))
    ours = session.forward([9, 8, 7], [0, 1, 2], causal(0, 3)).hiddens()
    theirs = CpuSession(bundle).forward([9, 8, 7], [0, 1, 2], causal(0, 3)).hiddens()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_search_for_the_worst_layer_sees_the_same_values_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = make_precision("w4a16")
    htp = HtpOptions(find_socs(("SM8650",)), precision)
    bundle = make_pair(tmp_path, noise=None)
    build = Build(bundle, "target", Variant(precision, htp.socs), htp, (8,), lambda words: None)
    values = [f"layers.{i}.{stage}" for i in range(3) for stage in ("attended", "out")]
    whole = _run_cpu(build, 8, values, [9, 8, 7])
    monkeypatch.setattr(layers, "_LARGE", 0)
    monkeypatch.setattr(layers, "_PART", 1)
    parts = _run_cpu(build, 8, values, [9, 8, 7])
    for value in values:
        assert np.abs(whole[value]).max() > 0
        np.testing.assert_allclose(parts[value], whole[value], rtol=1e-4, atol=1e-5)


def test_small_models_run_whole(tmp_path: Path) -> None:
    assert float_runtime(Network(make_pair(tmp_path, noise=None), "target")) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_calibration_forgets_values_once_it_has_looked_at_them(tmp_path: Path) -> None:
    """All of a pass take 100 MB here, those of a layer 4 MB, weights and graph 70 MB."""
    sizes = {"hidden": 128, "ffn": 256, "layers": 24, "heads": 16, "kv_heads": 4}
    export(write_tiny_hf(tmp_path / "m", **sizes), tmp_path / "b", context=512)
    assert grown(tmp_path / "b") < 110e6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_calibration_holds_a_part_of_the_weights_at_a_time(tmp_path: Path) -> None:
    """Anonymous memory and mapped pages together, of a model whose parts are a twelfth of it."""
    sizes = {"hidden": 512, "ffn": 1536, "layers": 12, "head_dim": 64, "heads": 8, "kv_heads": 2}
    bundle = export(write_tiny_hf(tmp_path / "m", **sizes), tmp_path / "b")
    weights = bundle.file("target/model.weights").stat().st_size
    assert weights > 140e6
    assert grown(tmp_path / "b", weights // 12) < 0.6 * weights


def grown(bundle: Path, *part: int) -> int:
    """Bytes of memory by which a process grows that calibrates a bundle, in parts of so many bytes."""
    command = [sys.executable, "-c", MEMORY, str(bundle), *map(str, part)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
