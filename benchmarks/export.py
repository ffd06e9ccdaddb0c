"""How long an export takes and how much memory it needs at its peak, in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.smollm2 import smollm2_checkpoint


def figures() -> Iterator[Figure]:
    checkpoint = smollm2_checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "hexgraft.host.cli",
            "export",
            str(checkpoint),
            "-o",
            f"{folder}/bundle",
        ]
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - start
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    yield Figure("export SmolLM2-135M, whole command", seconds, "s", "<= 30")
    yield Figure("export SmolLM2-135M, peak memory", peak, "GB", "<= 1.5")
    yield Figure("bundle of SmolLM2-135M", size / 1e9, "GB")
