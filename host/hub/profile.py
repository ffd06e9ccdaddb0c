"""Times every graph of a bundle on a hosted device, and writes what is found as a latency profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

from hexgraft.host.bundle import Bundle
from hexgraft.host.hub.desk import Desk, Wish
from hexgraft.host.hub.errors import JobFailed
from hexgraft.host.hub.graphs import HostedBuild, HostedModels, Size, graph_wish
from hexgraft.host.hub.service import HostedDevice
from hexgraft.host.hub.session import inputs_of_pass
from hexgraft.host.measure.profile import (
    FORMAT,
    Citation,
    LatencyProfile,
    Machine,
    ModelTimes,
    PassTime,
    Source,
    Spread,
)

_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class GraphTimes:
    """What a hosted device took for one graph, its parts one after the other. `jobs` are the addresses."""

    role: str
    size: Size
    graph: Spread
    load: float | None
    peak: int | None
    jobs: tuple[str, ...]


def profile_model(
    desk: Desk, bundle: Bundle, role: str, build: HostedBuild, device: HostedDevice, iterations: int
) -> tuple[list[GraphTimes], list[JobFailed]]:
    """Profile jobs for all graphs of a model, submitted together; their times by rows and slots, and what
    failed.

    A width of which a graph failed is left out at every capacity. Raises JobFailed if that leaves none.
    """
    models = HostedModels(desk, bundle)

    def submit(size: Size) -> list[Wish]:
        """The jobs of a graph's parts. The inputs, as large as a cache each, are made anew where they are
        asked for again."""
        wishes = []
        for graph, inputs in inputs_of_pass(bundle, role, build, size):
            wish = graph_wish("profile", device, graph, inputs, f" --max_profiler_iterations {iterations}")
            desk.submit(wish, partial(models.listed, graph), inputs)
            wishes.append(wish)
        return wishes

    wishes = {size: submit(size) for size in build.chains}
    jobs = {wish: partial(submit, size) for size, parts in wishes.items() for wish in parts}
    troubles: list[JobFailed] = []
    found = desk.results(jobs, desk.service.profile, lambda wish, trouble: troubles.append(trouble))
    failed = {width for (width, _), parts in wishes.items() for wish in parts if wish.key not in found}
    whole = {size: parts for size, parts in wishes.items() if size[0] not in failed}
    if not whole:
        raise troubles[0]
    times = []
    for size, parts in whole.items():
        addresses = tuple(desk.book.jobs[wish.key].url for wish in parts)
        times.append(_times(role, size, [found[wish.key] for wish in parts], addresses))
    return times, troubles


def _times(role: str, size: Size, found: list[dict[str, Any]], jobs: tuple[str, ...]) -> GraphTimes:
    load, peak = _sum(found, "first_load_time", _MICRO), _most(found, "estimated_inference_peak_memory")
    return GraphTimes(role, size, spread_of(found), load, peak, jobs)


def spread_of(parts: list[dict[str, Any]]) -> Spread:
    """Median and quartiles of a pass through all parts: runs of one number are added up."""
    runs = [summary.get("all_inference_times") or [] for summary in parts]
    counts = {len(times) for times in runs}
    if counts != {0} and len(counts) == 1:
        return Spread.of([sum(times) * _MICRO for times in zip(*runs, strict=True)])
    return Spread.single(sum(summary["estimated_inference_time"] for summary in parts) * _MICRO)


def _sum(parts: list[dict[str, Any]], key: str, unit: float) -> float | None:
    values = [summary.get(key) for summary in parts]
    return sum(value * unit for value in values if value) if any(values) else None


def _most(parts: list[dict[str, Any]], key: str) -> int | None:
    return max((summary.get(key) or 0 for summary in parts), default=0) or None


def latency_profile(
    bundle: Bundle,
    device: HostedDevice,
    chip: str,
    builds: Mapping[str, HostedBuild],
    times: list[GraphTimes],
    by: str,
) -> LatencyProfile:
    """The profile of hosted figures. A static graph costs the same whatever is in its cache, so a capacity
    counts from where the one below it is full."""
    models = {role: _model_times(bundle, role, times) for role in builds}
    citations = [Citation(f"{t.role} {t.size[0]}x{t.size[1]}", job) for t in times for job in t.jobs]
    target = builds["target"].htp
    return LatencyProfile(
        format=FORMAT,
        source=Source(
            "hosted device",
            date.today().isoformat(),
            by,
            "profile jobs at Qualcomm AI Hub: the NPU's own time, without what a phone's host adds",
            citations,
        ),
        machine=Machine(device.name, "AI Hub", chip, device.system, runtime=f"QAIRT {target.qairt}"),
        backend="aihub-htp",
        target=models["target"],
        draft=models.get("draft"),
        bundle=bundle.digest,
    )


def _model_times(bundle: Bundle, role: str, times: list[GraphTimes]) -> ModelTimes:
    ours = [each for each in times if each.role == role]
    capacities = sorted({each.size[1] for each in ours})
    model = bundle.model(role)
    passes = [
        PassTime(each.size[0], fill, each.graph) for each in ours for fill in _fills(each.size, capacities)
    ]
    widths = sorted({each.size[0] for each in ours})
    return ModelTimes(model.name, passes, widths, model.parameters)


def _fills(size: Size, capacities: list[int]) -> list[int]:
    width, capacity = size
    below = [other for other in capacities if other < capacity]
    first = below[-1] - width + 1 if below else 0
    return sorted({max(0, first), max(0, capacity - width)})
