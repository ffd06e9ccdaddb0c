"""What the processor that runs the tests is, where a result depends on it."""

from __future__ import annotations

from pathlib import Path

import pytest


def _flags() -> set[str]:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


AVX512 = "avx512f" in _flags()
"""Without it ONNX Runtime adds up products of 4-bit weights and rounded activations in another order in
passes of one row than in wider ones."""

needs_avx512 = pytest.mark.skipif(not AVX512, reason="w4a8 gives other last digits at other widths here")
