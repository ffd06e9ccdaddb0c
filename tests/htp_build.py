"""Helpers for tests of the NPU path: whether the emulator is here, small exports and calibrated networks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import Result
from command import hexgraft

from hexgraft.export.htp.calibrate import calibrate
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.plan import packaged_text
from hexgraft.export.htp.precision import Precision
from hexgraft.export.htp.quantise import quantise
from hexgraft.export.htp.ranges import Ranges
from hexgraft.export.htp.weights import QuantisedWeights
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.models.errors import ExportError

needs_qnn = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None,
    reason='onnxruntime-qnn is not installed: on x86-64 Linux, pip install "hexgraft[htp]"',
)


def random_text(count: int, seed: int = 1) -> list[int]:
    """Tokens of the tiny vocabulary, special ones left out."""
    return [int(token) for token in np.random.default_rng(seed).integers(8, 300, count)]


def short_text(folder: Path) -> Path:
    """A file with little more text than calibration asks for."""
    file = folder / "text.txt"
    file.write_text(packaged_text("calibration")[:700], encoding="utf-8")
    return file


def export_words(checkpoint: Path, output: Path, *arguments: str) -> list[str]:
    """The words of a small export for the NPU."""
    place = ["export", str(checkpoint), "-o", str(output), "--target", "htp"]
    return [*place, "--widths", "1,8", "--context", "128", *arguments]


def export(checkpoint: Path, output: Path, *arguments: str) -> Result:
    return hexgraft(*export_words(checkpoint, output, *arguments))


def no_space(*arguments: object) -> None:
    """Stands in for the step of an export at which the disk is full."""
    raise ExportError("no space left", "make some")


def calibration_of(precision: str, folder: Path) -> Path | None:
    """`short_text` where a precision of the NPU is calibrated."""
    return None if precision == "fp16" else short_text(folder)


def calibrated(bundle: Bundle, role: str = "target") -> tuple[Network, Ranges]:
    return Network(bundle, role), calibrate(bundle, role, [random_text(300)])


def quantised_file(
    network: Network, ranges: Ranges, precision: Precision, width: int, name: str = "test"
) -> Path:
    """The static graph at `precision`, saved beside the network's weights."""
    weights = QuantisedWeights(network, f"{name}.work.weights")
    proto = quantise(network, network.static(width), precision, ranges, weights)
    file = network.folder / f"{name}.work.onnx"
    onnx.save(proto, file)
    return file


def cpu_session(bundle: Bundle, file: Path, width: int, **arguments: Any) -> CpuSession:
    """A session over a quantised static graph, computed by ONNX Runtime's CPU provider."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    runtime = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return CpuSession(bundle, widths=[width], whole=True, runtime=runtime, **arguments)
