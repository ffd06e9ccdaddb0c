"""Lays an NPU build out in the bundle's folder: static graphs to compile, and the binaries that come of
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import onnx

from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.network import Network
from hexgraft.export.htp.parts import split
from hexgraft.export.htp.plan import HtpOptions, Variant, capacities_of, cuts
from hexgraft.export.htp.precision import FLOAT
from hexgraft.export.htp.quantise import quantise
from hexgraft.export.htp.ranges import Ranges
from hexgraft.export.htp.soc import Soc
from hexgraft.export.htp.stages import Stages
from hexgraft.export.htp.weights import QuantisedWeights
from hexgraft.export.htp.wrapper import binary_of
from hexgraft.export.static import static_name
from hexgraft.host.bundle import Bundle
from hexgraft.host.manifest import GraphEntry, HtpEntry

_MASK_MARGIN = 20.0
"""How far below every visible score a hidden one ends at least, in nats: e^-20 is nothing at 16 bits."""


@dataclass(slots=True)
class Job:
    """One binary: `graphs` are its (width, capacity, part), `host` whether it is for the emulator alone."""

    soc: Soc
    folder: Path
    name: str
    graphs: tuple[tuple[int, int, int], ...]
    host: bool


@dataclass
class Build:
    """One variant of one model. `mask` takes the place of the model's mask value where it is set."""

    bundle: Bundle
    role: str
    variant: Variant
    htp: HtpOptions
    widths: tuple[int, ...]
    say: Callable[[str], None]
    mask: float | None = field(default=None)

    @cached_property
    def network(self) -> Network:
        return Network(self.bundle, self.role)

    @cached_property
    def cuts(self) -> list[str]:
        return cuts(self.network, self.variant.precision, self.htp.part_bytes)

    @property
    def parts(self) -> int:
        return len(self.cuts) + 1

    @cached_property
    def capacities(self) -> tuple[int, ...]:
        return capacities_of(self.htp, self.network.model.context)

    @property
    def sizes(self) -> Iterator[tuple[int, int]]:
        """(width, capacity) of every graph."""
        return ((width, capacity) for capacity in self.capacities for width in self.widths)

    def graph_name(self, width: int, capacity: int, part: int) -> str:
        name = static_name(self.role, width, capacity)
        return f"{name}_part{part}" if self.cuts else name

    def work_file(self, width: int, capacity: int, part: int) -> Path:
        """The static graph to compile. It lies beside the weights, as runtimes read none from elsewhere."""
        return self.network.folder / f"{self.graph_name(width, capacity, part)}.{self.variant.tag}.work.onnx"

    def jobs(self) -> Iterator[Job]:
        """Every binary of this variant: for each chip one a part, or one a graph where nothing is shared;
        for the first chip also the emulator's."""
        for soc in self.variant.socs:
            folder = Path(self.role) / "htp" / soc.name.lower() / self.variant.tag
            shared = self.htp.shared and len(list(self.sizes)) > 1
            simulated = soc == self.htp.socs[0]
            for part in range(self.parts):
                graphs = tuple((*size, part) for size in self.sizes)
                if shared:
                    yield Job(soc, folder, f"part{part}" if self.cuts else self.role, graphs, False)
                else:
                    for graph in graphs:
                        yield Job(soc, folder, self.graph_name(*graph), (graph,), False)
            if shared and simulated:
                for width, capacity in self.sizes:
                    for part in range(self.parts if width in self.host_widths else 0):
                        graph = (width, capacity, part)
                        yield Job(soc, folder / "host", self.graph_name(*graph), (graph,), True)

    @property
    def host_widths(self) -> tuple[int, ...]:
        return self.widths if self.htp.host_widths is None else self.htp.host_widths


class Compiler(Protocol):
    """A place other than this machine that makes binaries. With `dry` set it only notes what it would do."""

    dry: bool

    @property
    def identity(self) -> Any:
        """What its binaries depend on beside the graphs, as JSON values."""

    def prepare(self, build: Build, jobs: Sequence[Job]) -> None:
        """Hear of all binaries that are to be made before the first is asked for."""

    def compile(self, build: Build, job: Job) -> dict[str, str]:
        """Put a binary and its wrappers where `compile_binary` would have; {"qairt": its release}."""

    def keep(self, build: Build, job: Job) -> None:
        """Note what the bundle tells of a finished binary."""


def build_graphs(build: Build, ranges: Ranges | None, progress: Callable[[int], None]) -> None:
    """Write the static graphs of all sizes and parts, and the quantised weights they share."""
    network, precision = build.network, build.variant.precision
    weights = None
    if ranges is not None:
        weights = QuantisedWeights(network, f"{build.role}.{build.variant.tag}.work.weights", progress)
        if build.mask is not None:
            ranges = ranges.with_mask(network.model.mask_value, build.mask)
    for width, capacity in build.sizes:
        parts = split(network.static(width, capacity), build.cuts, network.model.hidden, width)
        for number, part in enumerate(parts):
            if weights is not None and ranges is not None:
                part = quantise(network, part, precision, ranges, weights)
            onnx.save(part, build.work_file(width, capacity, number))


def choose_mask(ranges: Ranges) -> float:
    """The mask constant of an all-integer graph: as near as it may be, since the scores share its 16 bits."""
    scores = [name for name in ranges.low if name.endswith(".scores")]
    low = min(ranges.low[name] for name in scores)
    high = max(ranges.high[name] for name in scores)
    return -float(max(50.0, round(high - low + _MASK_MARGIN)))


def compile_variant(
    build: Build, stages: Stages, key: Any, make: Callable[[], None], compiler: Compiler | None = None
) -> list[GraphEntry]:
    """Compile every binary of a variant, those that an earlier run finished excepted; the graphs' entries.

    `compiler` does it elsewhere; a dry one leaves no entries.
    """
    role, tag = build.role, build.variant.tag
    shape = [key, build.widths, build.capacities, build.cuts, build.mask]
    files = [build.work_file(*size, part) for size in build.sizes for part in range(build.parts)]
    if len(build.capacities) > 1:
        build.say(
            f"{role} {tag}: {len(build.widths)} widths at each of {len(build.capacities)} capacities "
            f"({', '.join(map(str, build.capacities))} slots), {len(list(build.sizes))} graphs"
        )
    stages.run(f"{role} graphs {tag}", shape, make, lambda _: all(file.is_file() for file in files))
    work = compiler.compile if compiler else _compile
    where = [] if compiler is None else [compiler.identity]
    planned = []
    for job in build.jobs():
        name = f"{role} {job.soc.name} {tag} {'emulator ' if job.host else ''}{job.name}"
        planned.append((job, name, [shape, job.graphs, build.htp.vtcm_mb, *where]))
    if compiler is not None:
        done = {
            name: stages.finished(name, what, partial(_present, build, job)) for job, name, what in planned
        }
        compiler.prepare(build, [job for job, name, _ in planned if not done[name]])
        if compiler.dry:
            return []
    entries: list[GraphEntry] = []
    for job, name, what in planned:
        result = stages.run(name, what, partial(work, build, job), partial(_present, build, job))
        if compiler is not None:
            compiler.keep(build, job)
        entries += _entries(build, job, result["qairt"])
    return entries


def _compile(build: Build, job: Job) -> dict[str, str]:
    folder = build.bundle.path / job.folder
    folder.mkdir(parents=True, exist_ok=True)
    models = {build.graph_name(*graph): build.work_file(*graph) for graph in job.graphs}
    place = f"{build.role} {job.soc.name} {build.variant.tag}"
    build.say(f"{place}: compiling {job.name}, {len(models)} graph{'s' * (len(models) > 1)}")
    compiled = compile_binary(models, folder, job.name, job.soc, vtcm_mb=build.htp.vtcm_mb)
    size = compiled.binary.stat().st_size
    build.say(
        f"{place}: {job.name}.bin has {size / 1e6:.1f} MB, took {compiled.seconds:.1f} s and "
        f"{compiled.peak / 1e9:.2f} GB of memory"
    )
    return {"qairt": compiled.graphs[0].qairt}


def _present(build: Build, job: Job, found: Mapping[str, str]) -> bool:
    """Whether a binary and its wrappers are there. Binaries of one graph and shared ones have wrappers of the
    same names, so that those there may be of an export with other options."""
    folder, binary = build.bundle.path / job.folder, f"{job.name}.bin"
    wrappers = [folder / f"{build.graph_name(*graph)}.onnx" for graph in job.graphs]
    return (folder / binary).is_file() and all(
        wrapper.is_file() and binary_of(wrapper) == binary for wrapper in wrappers
    )


def _entries(build: Build, job: Job, qairt: str) -> Iterator[GraphEntry]:
    shared = len(job.graphs) > 1
    providers = ["htp-sim"] if job.host else ["htp"]
    if not job.host and not shared and job.soc == build.htp.socs[0]:
        providers.append("htp-sim")  # a single graph serves the phone and the emulator alike
    for width, capacity, part in job.graphs:
        htp = HtpEntry(
            soc=job.soc.name,
            soc_model=job.soc.soc_model,
            arch=job.soc.arch,
            qairt=qairt,
            binary=(job.folder / f"{job.name}.bin").as_posix(),
            shared=shared,
            vtcm_mb=build.htp.vtcm_mb,
            part=part,
            parts=build.parts,
            mask_value=build.mask,
        )
        file = (job.folder / f"{build.graph_name(width, capacity, part)}.onnx").as_posix()
        for provider in providers:
            if provider == "htp" or width in build.host_widths:
                precision = build.variant.precision.name
                yield GraphEntry(file, provider, precision, width, capacity, htp)


__all__ = ["FLOAT", "Build", "Compiler", "Job", "build_graphs", "choose_mask", "compile_variant"]
