"""One measured figure, what it should reach, and how a run of them is printed."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import onnxruntime


@dataclass(frozen=True, slots=True)
class Figure:
    """`goal` reads like "<= 2.2", or is empty for a figure that only informs."""

    name: str
    value: float
    unit: str = ""
    goal: str = ""

    @property
    def met(self) -> bool | None:
        if not self.goal:
            return None
        relation, _, bound = self.goal.partition(" ")
        return self.value <= float(bound) if relation == "<=" else self.value >= float(bound)

    def line(self) -> str:
        verdict = {None: "", True: f"  goal {self.goal}: met", False: f"  goal {self.goal}: MISSED"}[self.met]
        return f"{self.name:<58} {self.value:>9.3g} {self.unit:<8}{verdict}"


def report(figures: Iterable[Figure], *, as_json: bool) -> list[Figure]:
    """Print figures as they come; returns them."""
    done = []
    for figure in figures:
        done.append(figure)
        if not as_json:
            print(figure.line(), flush=True)
    if as_json:
        print(
            json.dumps(
                {"machine": machine(), "figures": [asdict(f) | {"met": f.met} for f in done]}, indent=1
            )
        )
    return done


def machine() -> dict[str, str | int | float]:
    """What a reader of the figures has to know about the machine."""
    cpu = next(cpu_lines(), platform.processor())
    load = os.getloadavg()[0]
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 0,
        "load": round(load, 2),
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
    }


def cpu_lines() -> Iterator[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            yield line.partition(":")[2].strip()
