"""An NPU export of a 1.5B model (Qwen2 1.5B's shapes, random weights): time, and memory of all its processes
by the stages of the export, mapped files apart.

Takes about 12 GB of disk and, on two cores, ten minutes a precision. HEXGRAFT_NPU names the precisions to run
("w8a16,w4a16"), TMPDIR the place. Needs onnxruntime-qnn.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.big_checkpoints import SIZES, write_random_checkpoint
from benchmarks.figure import Figure
from benchmarks.memory import stage_figures, watch

PART_MB = {"w8a16": 240, "w4a16": 240}


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="hexgraft-npu-") as name:
        folder = Path(name)
        checkpoint = write_random_checkpoint(folder / "1.5B", SIZES["1.5B"])
        for precision in os.environ.get("HEXGRAFT_NPU", "w8a16,w4a16").split(","):
            yield from _figures(checkpoint, folder / precision, precision)
            shutil.rmtree(folder / precision)


def _figures(checkpoint: Path, output: Path, precision: str) -> Iterator[Figure]:
    command = [sys.executable, "-m", "hexgraft.host.cli", "export", str(checkpoint), "-o", str(output)]
    command += ["--target", "htp", "--soc", "SM8650", "--precision", precision, "--context", "512"]
    command += ["--widths", "1,16,128", "--host-widths", "none", "--part-size", str(PART_MB[precision])]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stages = watch(process, output)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"the export at {precision} failed with exit code {process.returncode}")
    binaries = sorted(output.glob("target/htp/sm8650/*/*.bin"))
    size = sum(file.stat().st_size for file in binaries)
    yield Figure(f"1.5B to {precision}, 3 widths shared, whole command", seconds / 60, "min", "<= 15")
    peak = max(stage.total for stage in stages.values())
    yield Figure(f"1.5B to {precision}, peak memory of all processes", peak / 1e9, "GB", "<= 8")
    yield from stage_figures(f"1.5B to {precision}", stages)
    yield Figure(f"1.5B to {precision}, context binaries", size / 1e9, "GB")
    yield Figure(f"1.5B to {precision}, parts", len(binaries))
