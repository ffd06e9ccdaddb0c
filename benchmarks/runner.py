"""The runner beside the graph runtime: what protocol, rows and cache cost around a pass of SmolLM2."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.figure import Figure
from benchmarks.smollm2 import smollm2_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.session import Session, causal
from hexgraft.models.errors import UsageError

WIDTH = 16
FILL = 400
KEPT = 4
ROUNDS = 25
CALLS = 500


def figures() -> Iterator[Figure]:
    try:
        runner = LocalRunner()
    except UsageError as error:
        print(f"runner: not measured, {error.message}; {error.hint}", file=sys.stderr)
        return
    bundle = smollm2_bundle()
    session = RunnerSession(runner.connection, str(bundle.path))
    fill(session)
    passes, outside = rounds(session)
    yield Figure(f"runner: a pass of {WIDTH} rows, {FILL} slots filled", passes * 1e3, "ms")
    yield Figure("runner: time of a round outside the runtime", outside * 1e3, "ms")
    yield Figure("runner: the same, of a pass", 100 * outside / passes, "%", "<= 3")

    call = runner.connection.call
    empty = median(lambda: call([]), CALLS)
    yield Figure("runner: round trip on a pipe", empty * 1e3, "ms", "<= 0.2")
    store = {
        "op": "store",
        "model": session.name,
        "rows": [0, 3, 7, 9],
        "slots": list(range(FILL, FILL + KEPT)),
    }
    layers = bundle.target.layers
    cold = statistics.median(_cold_stores(session, store))
    yield Figure(f"runner: {KEPT} rows stored over {layers} layers, after a pass", cold * 1e3, "ms", "<= 0.2")
    rows = {"op": "rows", "model": session.name, "want": "topk", "k": 1, "log_sum": False}
    best = median(lambda: call([rows]), 100) - empty
    yield Figure(f"runner: best token of {WIDTH} rows", best * 1e3, "ms")
    rows |= {"k": 8, "log_sum": True}
    best = median(lambda: call([rows]), 100) - empty
    yield Figure(f"runner: best 8 tokens of {WIDTH} rows with log-sum", best * 1e3, "ms")
    session.close()
    runner.close()
    local = CpuSession(bundle)
    fill(local)
    _, outside = rounds(local)
    yield Figure("in process: time of a round outside the runtime", outside * 1e3, "ms")


def rounds(session: Session) -> tuple[float, float]:
    """Medians over rounds (store what was accepted, a pass, its best tokens): in the runtime, outside it."""
    inside, outside = [], []
    for number in range(ROUNDS + 3):
        start = time.perf_counter()
        if number:
            session.store(range(KEPT), range(FILL, FILL + KEPT))
        rows = session.forward([5] * WIDTH, range(FILL, FILL + WIDTH), causal(FILL, WIDTH))
        rows.topk(1, log_sum=False)
        spent = time.perf_counter() - start
        if number >= 3:
            inside.append(rows.seconds)
            outside.append(spent - rows.seconds)
    return statistics.median(inside), statistics.median(outside)


def _cold_stores(session: RunnerSession, store: dict[str, object]) -> Iterator[float]:
    """A store right after a pass, whose weights have pushed the cache's rows out of the caches."""
    for _ in range(ROUNDS):
        session.forward([5] * WIDTH, range(FILL, FILL + WIDTH), causal(FILL, WIDTH))
        start = time.perf_counter()
        session.connection.call([])
        middle = time.perf_counter()
        session.connection.call([store])
        yield (time.perf_counter() - middle) - (middle - start)


def fill(session: Session) -> None:
    """Slots 0..FILL-1 hold a prompt."""
    for start in range(0, FILL, 100):
        session.forward([5] * 100, range(start, start + 100), causal(start, 100))
        session.store(range(100), range(start, start + 100))


def median(action: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
