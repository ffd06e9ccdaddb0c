"""A bundle's NPU graphs as a hosted device runs them: which model AI Hub has of a binary, and its graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx

from hexgraft.host.bundle import Bundle
from hexgraft.host.htp.session import choose_chains
from hexgraft.host.hub.book import digest_of
from hexgraft.host.hub.desk import Desk, Wish
from hexgraft.host.hub.errors import HubMissing
from hexgraft.host.hub.records import read_records
from hexgraft.host.hub.service import Arrays, HostedDevice
from hexgraft.host.manifest import KV_LAYOUT, GraphEntry, HtpEntry
from hexgraft.models.errors import BundleError, UsageError

Size = tuple[int, int]
"""Rows T and cache slots C of a graph."""


@dataclass(frozen=True, slots=True)
class HostedGraph:
    """One part of a graph: `name` inside its `binary`, a file of the bundle with the sha256 `digest`; its
    inputs and outputs as name -> shape."""

    title: str
    name: str
    binary: Path
    digest: str
    inputs: dict[str, tuple[int, ...]]
    outputs: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class HostedBuild:
    """The graphs of one model of a bundle for one chip: (T, C) -> its parts in order."""

    htp: HtpEntry
    precision: str
    chains: dict[Size, list[HostedGraph]]


def hosted_build(bundle: Bundle, role: str, soc: str | None, precision: str | None) -> HostedBuild:
    """A bundle's graphs for a chip; raises BundleError or UsageError where it has none such."""
    if bundle.model(role).kv_layout != KV_LAYOUT:
        raise UsageError(
            f"{bundle.path} has another layout of the cache than hexgraft's own exports",
            "run it here: hexgraft run, hexgraft bench",
        )
    chosen = choose_chains(bundle, role, soc, precision, provider="htp")
    first = next(iter(chosen.values()))[0]
    chains = {size: [_hosted(bundle, graph) for graph in parts] for size, parts in chosen.items()}
    return HostedBuild(_htp(first), first.precision, chains)


def check_device(build: HostedBuild, device: HostedDevice) -> None:
    """Raise UsageError unless the device's NPU is of the generation the binaries are for."""
    arches = [value.lstrip("v") for value in device.values("hexagon")]
    if arches and str(build.htp.arch) not in arches:
        raise UsageError(
            f"the bundle's graphs are for {build.htp.soc} (V{build.htp.arch}), {device.name} is V{arches[0]}",
            "choose another --device, or export for its chip",
        )


class HostedModels:
    """The models AI Hub has of a bundle's binaries: those that it made itself, the others uploaded once."""

    def __init__(self, desk: Desk, bundle: Bundle) -> None:
        self._desk = desk
        records = read_records(bundle)
        self._made: dict[Path, str] = {}
        if records is not None and records.service == desk.service.address:
            self._made = {bundle.file(record.binary): record.model_id for record in records.binaries}
        self._checked: dict[Path, str] = {}

    def listed(self, graph: HostedGraph) -> list[str]:
        """The id of the model that holds a graph, as what a job works on."""
        known = self._checked.get(graph.binary)
        if known is None:
            known = self._checked[graph.binary] = self._find(graph)
        return [known]

    def _find(self, graph: HostedGraph) -> str:
        made = self._made.get(graph.binary)
        if made is not None:
            try:
                self._desk.service.facts(made)
                return made
            except HubMissing:
                pass  # deleted there; what was downloaded is as good
        return self._desk.upload(graph.digest, graph.binary.name, lambda: graph.binary)


def run_graph(
    desk: Desk, models: HostedModels, device: HostedDevice, graph: HostedGraph, inputs: Arrays
) -> Arrays:
    """One inference job: what a graph gives for `inputs`, by output name."""
    wish = graph_wish("inference", device, graph, inputs, "")
    submit = partial(desk.submit, wish, partial(models.listed, graph), inputs)
    submit()
    found = desk.results({wish: submit}, desk.service.outputs)[wish.key]
    missing = [name for name in graph.outputs if name not in found]
    if missing:
        job_id = desk.book.jobs[wish.key].job_id
        raise BundleError(
            f"the job {job_id} gave no {missing[0]} but {', '.join(found)}", "export the bundle again"
        )
    return found


def graph_wish(kind: str, device: HostedDevice, graph: HostedGraph, inputs: Arrays, more: str) -> Wish:
    """A job on one graph of a binary, known by the binary and by its inputs."""
    content = [digest_of(name, str(array.dtype), array.tobytes()) for name, array in inputs.items()]
    options = f"--qnn_options context_enable_graphs={graph.name}{more}"
    return Wish(kind, graph.title, device, options, (graph.digest, *content))


def _hosted(bundle: Bundle, graph: GraphEntry) -> HostedGraph:
    proto = onnx.load(bundle.file(graph.file), load_external_data=False).graph
    if len(proto.node) != 1 or proto.node[0].op_type != "EPContext":
        raise BundleError(f"{bundle.file(graph.file)} is no wrapper of a context binary", "export again")
    binary = _htp(graph).binary
    return HostedGraph(
        Path(graph.file).stem,
        proto.node[0].name,
        bundle.file(binary),
        bundle.manifest.files[binary].sha256,
        _shapes(proto.input),
        _shapes(proto.output),
    )


def _shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
    return {value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in values}


def _htp(graph: GraphEntry) -> HtpEntry:
    if graph.htp is None:
        raise BundleError(f"{graph.file} does not say what chip it was compiled for", "export again")
    return graph.htp
