"""What a runner's record of a run says, in a few figures (device/PROTOCOL.md has its lines)."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec


class Passes(msgspec.Struct, frozen=True):
    """Passes of one model at one width: how many, and the median seconds inside the runtime."""

    model: str
    width: int
    count: int
    seconds: float


class RunRecord(msgspec.Struct, frozen=True):
    """`started` in seconds since 1970, `seconds` of the run; `ended` says how, None where the runner was
    killed or still runs. `errors` and `log` are what went wrong and what the runtime logged, `hottest` the
    warmest zone seen, in degrees Celsius; `cut` that the record reached its largest size."""

    started: int | None
    seconds: float
    version: str
    ended: str | None
    passes: list[Passes]
    errors: list[str]
    log: list[str]
    hottest: float | None
    cut: bool


def read_record(path: Path) -> RunRecord:
    """Sum a record up. Lines that cannot be read, such as one a killed runner was writing, are left out."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    start: dict[str, Any] = {}
    ended, seconds, hottest, cut = None, 0.0, None, False
    errors: list[str] = []
    log: list[str] = []
    for event in _events(path):
        seconds = max(seconds, event.get("t", 0.0))
        match event["event"]:
            case "start":
                start = event
            case "pass":
                times[event["model"], event["width"]].append(event["seconds"])
            case "error":
                errors.append(f"{event.get('op')}: {event.get('message')}")
            case "log":
                log.append(event["line"])
            case "state":
                zones = [degrees for degrees in event.get("thermal", {}).values() if -40 < degrees < 150]
                hottest = max([*zones, *([] if hottest is None else [hottest])], default=None)
            case "full":
                cut = True
            case "end":
                ended = event["how"]
    return RunRecord(
        started=start.get("time"),
        seconds=seconds,
        version=start.get("version", ""),
        ended=ended,
        passes=[
            Passes(model, width, len(each), statistics.median(each))
            for (model, width), each in sorted(times.items())
        ],
        errors=errors,
        log=log,
        hottest=hottest,
        cut=cut,
    )


def _events(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            found.append(event)
    return found


def words(record: RunRecord) -> str:
    """One line for a screen."""
    parts = [f"{record.seconds:.1f} s"]
    parts += [
        f"{each.model} {each.count} passes of {each.width} rows ({each.seconds * 1e3:.2f} ms)"
        for each in record.passes
    ]
    if record.errors:
        parts.append(f"{len(record.errors)} errors, the last: {record.errors[-1]}")
    if record.hottest is not None:
        parts.append(f"up to {record.hottest:.0f} °C")
    parts.append(f"ended: {record.ended or 'killed, or still running'}")
    return ", ".join(parts)
