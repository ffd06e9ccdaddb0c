"""The runner on the Hexagon emulator: context binaries, one static graph a width, no node on the CPU."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from pair import write_pair
from test_runner_session import random_tree

from hexgraft.export.writer import ExportOptions
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.local_runner import LocalRunner
from hexgraft.host.runner_session import RunnerSession
from hexgraft.host.session import tree_visibility
from hexgraft.host.wire import RunnerError
from hexgraft.models.decoder import dimensions
from hexgraft.models.errors import BundleError, DecodeError
from hexgraft.models.graph import fix_dimensions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="onnxruntime-qnn is not installed"
)
CAPACITY = 256
WIDTHS = (1, 8)
SM8650 = {"soc_model": "57"}

COMPILE = """
import sys, onnxruntime as ort, onnxruntime_qnn as qnn
ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
device = [d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider"][:1]
options = ort.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
options.add_session_config_entry("ep.context_enable", "1")
options.add_session_config_entry("ep.context_file_path", sys.argv[2])
options.add_session_config_entry("ep.context_embed_mode", "0")
settings = {"backend_path": qnn.get_qnn_htp_path(), "soc_model": "57", "htp_arch": "75"}
options.add_provider_for_devices(device, settings | {"enable_htp_fp16_precision": "1"})
ort.InferenceSession(sys.argv[1], options)
"""


@pytest.fixture(scope="module")
def htp_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The tiny target with an fp16 context binary for each width, made in another process."""
    path = write_pair(tmp_path_factory.mktemp("htp"), noise=None, options=ExportOptions(WIDTHS, CAPACITY))
    folder = path / "target"
    manifest = json.loads((path / "bundle.json").read_text())
    for width in WIDTHS:
        symbolic = onnx.load(folder / "model.onnx", load_external_data=False)
        static = folder / "static.onnx"
        onnx.save(fix_dimensions(symbolic, dimensions(width, CAPACITY)), static)
        context = folder / f"ar{width}.onnx"
        subprocess.run([sys.executable, "-c", COMPILE, static, context], check=True, capture_output=True)
        static.unlink()
        entry = {"file": f"target/{context.name}", "provider": "htp", "precision": "fp16"}
        manifest["target"]["graphs"].append(entry | {"width": width, "capacity": CAPACITY})
    for file in folder.iterdir():
        raw = file.read_bytes()
        manifest["files"][f"target/{file.name}"] = {
            "size": len(raw),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
    (path / "bundle.json").write_text(json.dumps(manifest))
    return open_bundle(path)


@pytest.fixture(scope="module")
def session(htp_bundle: Bundle, runner: LocalRunner) -> Iterator[RunnerSession]:
    session = RunnerSession(runner.connection, str(htp_bundle.path), provider="htp", options=SM8650)
    yield session
    session.close()


def test_load_says_what_runs(session: RunnerSession) -> None:
    assert session.spec.provider == "runner-htp"
    assert session.spec.widths == WIDTHS
    assert session.spec.capacity == CAPACITY
    assert session.loaded.memory in ("plain", "QnnHtpShared")


def test_trees_match_the_cpu_within_fp16(session: RunnerSession, htp_bundle: Bundle) -> None:
    local = CpuSession(htp_bundle, widths=WIDTHS, whole=True)
    rng = np.random.default_rng(4)
    committed = 0
    for size in (8, 1, 5, 7):
        mask, depths = random_tree(rng, size)
        tokens = rng.integers(0, 320, size).tolist()
        positions = [committed + d for d in depths]
        ours, theirs = (
            s.forward(tokens, positions, tree_visibility(committed, mask)) for s in (local, session)
        )
        assert theirs.width == ours.width
        np.testing.assert_array_equal(theirs.topk(1).ids, ours.topk(1).ids)
        for row in range(size):
            np.testing.assert_allclose(theirs.logits(row), ours.logits(row), rtol=0, atol=0.2)
        branch = np.flatnonzero(mask[-1]).tolist()
        for s in (local, session):
            s.store(branch, range(committed, committed + len(branch)))
        committed += len(branch)
    np.testing.assert_allclose(session.save(committed).keys, local.save(committed).keys, rtol=0, atol=0.05)


def test_widths_can_be_chosen(htp_bundle: Bundle, runner: LocalRunner) -> None:
    place = str(htp_bundle.path)
    session = RunnerSession(runner.connection, place, provider="htp", widths=[8], options=SM8650)
    assert session.spec.widths == (8,)
    with pytest.raises(DecodeError):
        session.forward([1] * 9, [0] * 9, tree_visibility(0, np.eye(9, dtype=np.bool_)))
    session.close()
    with pytest.raises(BundleError, match="one htp graph for each width"):
        RunnerSession(runner.connection, place, provider="htp", widths=[4], options=SM8650)


def test_unknown_options_are_refused(htp_bundle: Bundle, runner: LocalRunner) -> None:
    with pytest.raises(DecodeError, match="backend_path"):
        RunnerSession(
            runner.connection, str(htp_bundle.path), provider="htp", options={"backend_path": "/tmp/x.so"}
        )


def test_damaged_context_is_a_bundle_error(htp_bundle: Bundle, runner: LocalRunner, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    shutil.copytree(htp_bundle.path, place)
    for context in (place / "target").glob("*.bin"):
        context.write_bytes(b"\0" * context.stat().st_size)
    with pytest.raises(BundleError, match="cannot load"):
        RunnerSession(runner.connection, str(place), provider="htp", options=SM8650)


def test_provider_that_is_none(htp_bundle: Bundle, binary: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "libplugin.so"
    plugin.write_bytes(b"no library")
    runner = LocalRunner(binary, qnn=plugin)
    with pytest.raises(RunnerError, match="cannot be used"):
        RunnerSession(runner.connection, str(htp_bundle.path), provider="htp")
    runner.close()
