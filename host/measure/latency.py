"""Takes the times of a session: passes by width and fill, cache operations, and a round's host time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.manifest import ModelEntry
from hexgraft.host.measure.metered import Clock, Metered
from hexgraft.host.measure.profile import CacheTime, Endurance, ModelTimes, PassTime, Spread
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.session import HeadSession, Rows, Session, States, causal
from hexgraft.models.errors import UsageError

_TOKEN = 5
_ANY = (1, 2, 4, 8, 16, 32)
"""Widths to measure where any width runs: those a tree may have, twice as wide each."""
_WALKED = 8
"""Rows of a pass that are fetched one after another, to time one."""
_BEST = {"target": 1, "draft": 8}
"""How many tokens of a row the decode loop fetches: the target's best, the draft's candidates."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: `repeats` rounds over all widths after `warmup` ones, at every one of `fills`.

    `progress` is called after each pass. `clock` gives seconds; tests put a virtual one.
    """

    fills: tuple[int, ...] = (64, 256)
    repeats: int = 15
    warmup: int = 2
    tokens: int = 48
    clock: Clock = time.perf_counter
    progress: Callable[[], None] = field(default=lambda: None)

    def __post_init__(self) -> None:
        for ok, what, hint in (
            (self.fills and min(self.fills) >= 0, "a cache fill is negative", "example: --fills 64,256"),
            (self.repeats >= 1, f"--repeats {self.repeats} is not positive", "example: --repeats 15"),
            (self.warmup >= 0, f"--warmup {self.warmup} is negative", "example: --warmup 2"),
        ):
            if not ok:
                raise UsageError(what, hint)

    def passes(self, session: Session) -> int:
        """How many times `progress` will be called for a session."""
        widths, fills = measured_widths(session), self.fills_of(session)
        steps = (fill - before for before, fill in pairwise((0, *fills)))
        filling = sum(-(-step // session.spec.max_width) for step in steps)
        return len(widths) * len(fills) * (self.repeats + self.warmup) + filling

    def fills_of(self, session: Session) -> list[int]:
        """The fills that leave room for the widest pass; in place of those that leave none, the last that
        does."""
        most = max(0, session.spec.capacity - max(measured_widths(session)))
        return sorted({min(fill, most) for fill in self.fills})


def measured_widths(session: Session) -> Sequence[int]:
    """The widths of a session's graphs for trees; a series where any width runs."""
    if session.spec.tree_widths is not None:
        return session.spec.tree_widths
    return [width for width in _ANY if width <= session.spec.max_width]


def measure_model(session: Session, model: ModelEntry, plan: Plan) -> ModelTimes:
    """Passes and cache operations of a session of `model`. Widths are measured in turn, repeat by repeat, so
    that a machine that slows down slows all of them."""
    session.reset()
    passes: list[PassTime] = []
    start = 0
    for fill in plan.fills_of(session):
        while start < fill:
            width = min(session.spec.max_width, fill - start)
            _forward(session, model, start, width)
            session.store(range(width), range(start, start + width))
            start += width
            plan.progress()
        passes += _passes(session, model, fill, plan)
    widths = list(measured_widths(session)) if session.spec.widths is not None else None
    return ModelTimes(model.name, passes, widths, model.parameters, _cache_times(session, model, plan))


def _forward(session: Session, model: ModelEntry, start: int, width: int) -> Rows:
    """A pass over `width` tokens from position `start` on; a head's goes on from states of nothing."""
    if model.head is not None and isinstance(session, HeadSession):
        features = np.zeros((width, model.head.feature_size), np.float32)
        session.feed(States(features, np.zeros((width, model.hidden), np.float32)))
    return session.forward([_TOKEN] * width, range(start, start + width), causal(start, width))


def _passes(session: Session, model: ModelEntry, fill: int, plan: Plan) -> list[PassTime]:
    graph: dict[int, list[float]] = {width: [] for width in measured_widths(session)}
    call: dict[int, list[float]] = {width: [] for width in graph}
    best = min(_BEST.get(session.spec.role, 1), session.spec.vocab)
    for number in range(plan.warmup + plan.repeats):
        for width in graph:
            begun = plan.clock()
            rows = _forward(session, model, fill, width)
            rows.topk(best, [0] if best == 1 else None, log_sum=best > 1)
            if number >= plan.warmup:
                call[width].append(plan.clock() - begun)
                graph[width].append(rows.seconds)
            # As a round does; a session at the other end of a wire sends it along with the next pass.
            session.store([0], [fill])
            plan.progress()
    return [PassTime(width, fill, Spread.of(graph[width]), Spread.of(call[width])) for width in graph]


def measure_row(session: Session, model: ModelEntry, plan: Plan) -> Spread | None:
    """What one more row of a pass costs whoever has the best token of another: a walk asks row by row. None
    where passes have one row."""
    width = measured_widths(session)[-1]
    if width < 2:
        return None
    times: list[float] = []
    for _ in range(plan.repeats):
        rows = _forward(session, model, 0, width)
        rows.topk(1, [0], log_sum=False)
        for row in range(1, min(width, _WALKED)):
            begun = plan.clock()
            rows.topk(1, [row], log_sum=False)
            times.append(plan.clock() - begun)
    return Spread.of(times)


def _cache_times(session: Session, model: ModelEntry, plan: Plan) -> list[CacheTime]:
    """Stores and moves of one row and of as many as a tree accepts. A remote session sends them along with
    the next pass, so what counts there is what they add to a message."""
    found: list[CacheTime] = []
    room = session.spec.capacity // 2
    widest = measured_widths(session)[-1]
    _forward(session, model, 0, widest)
    for rows in sorted({1, min(8, widest, room)}):
        store = partial(session.store, range(rows), range(rows))
        move = partial(session.move, range(rows, 2 * rows), range(rows))
        times: dict[str, list[float]] = {"store": [], "move": []}
        for _ in range(plan.repeats):
            times["store"].append(_alone(session, store, plan))
            times["move"].append(_alone(session, move, plan))
        found += [CacheTime("store", rows, Spread.of(times["store"]))]
        found += [CacheTime("move", rows, Spread.of(times["move"]))]
    return found


def _alone(session: Session, operation: Callable[[], None], plan: Plan) -> float:
    begun = plan.clock()
    _settle(session)
    idle = plan.clock()
    operation()
    _settle(session)
    return max(0.0, (plan.clock() - idle) - (idle - begun))


def _settle(session: Session) -> None:
    """Have everything carried out that a remote session holds back."""
    if isinstance(session, RunnerSession):
        session.send([])


def measure_plain(session: Session, prompt: Sequence[int], plan: Plan) -> tuple[Spread, Endurance]:
    """Plain decoding: a round's time beside its pass, tokens a second in the first and last quarter."""
    meter = Metered(session, plan.clock)
    decoder = Decoder(meter, options=DecodeOptions(max_tokens=plan.tokens, tree_size=1))
    decoder.begin(prompt)
    rounds: list[float] = []
    host: list[float] = []
    while decoder.finish is None:
        meter.clear()
        begun = plan.clock()
        decoder.step()
        rounds.append(plan.clock() - begun)
        host.append(max(0.0, rounds[-1] - meter.seconds))
    quarter = max(1, len(rounds) // 4)
    first, last = sum(rounds[:quarter]), sum(rounds[-quarter:])
    speeds = (quarter / first if first else 0.0, quarter / last if last else 0.0)
    return Spread.of(host), Endurance(len(rounds), *speeds)
