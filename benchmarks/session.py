"""Passes of the CPU session: what a width costs against one row, and the memory all widths leave behind."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.smollm2 import smollm2_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import causal

WIDTHS = (1, 2, 4, 8, 16, 32)
FILL = 400
ROUNDS = 15


def figures() -> Iterator[Figure]:
    session = CpuSession(smollm2_bundle())
    prefill(session, FILL)
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for number in range(ROUNDS + 2):
        for width in WIDTHS:
            rows = session.forward([5] * width, range(FILL, FILL + width), causal(FILL, width))
            if number >= 2:
                times[width].append(rows.seconds)
    one = statistics.median(times[1])
    yield Figure(f"pass at T=1, {FILL} tokens in the cache", one * 1e3, "ms")
    for width in WIDTHS[1:]:
        # Ratios within one interleaved round cancel the drift of a noisy machine.
        ratio = statistics.median(w / o for w, o in zip(times[width], times[1], strict=True))
        yield Figure(f"pass at T={width} against T=1", ratio, "x", "<= 2.2" if width == 16 else "")
    yield from memory()


def prefill(session: CpuSession, tokens: int) -> None:
    width = session.spec.max_width
    for start in range(0, tokens, width):
        count = min(width, tokens - start)
        session.forward([5] * count, range(start, start + count), causal(start, count))
        session.store(range(count), range(start, start + count))


def memory() -> Iterator[Figure]:
    """Private memory of a process that has filled the context and run every width."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.session"], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    yield Figure("private memory of a session, all widths run", found["session"], "weights", "<= 1.4")
    yield Figure("private memory of its whole process", found["process"], "weights")


def _measure() -> None:
    bundle = smollm2_bundle()
    weights = bundle.target.parameters * 4
    before = anonymous()
    session = CpuSession(bundle)
    prefill(session, session.spec.capacity - 128)
    for width in (*WIDTHS, 128):
        start = session.spec.capacity - 128
        session.forward([5] * width, range(start, start + width), causal(start, width))
    after = anonymous()
    print(json.dumps({"session": (after - before) / weights, "process": after / weights}))


def anonymous() -> int:
    """Bytes only this process holds and the kernel cannot drop: mapped files are shared and not counted."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel reports no anonymous memory")


if __name__ == "__main__":
    _measure()
