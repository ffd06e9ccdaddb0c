"""A session whose passes are inference jobs on a hosted device: slow and paid for, but real silicon."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.htp.runtime import RemoteBinding
from hexgraft.host.hub.graphs import HostedBuild, HostedGraph
from hexgraft.host.hub.service import Arrays
from hexgraft.host.session import States, causal

PROVIDER = "aihub"

RunGraph = Callable[[HostedGraph, Arrays], Arrays]
"""Gives a graph's outputs for its inputs."""


class HostedRuntime:
    """Runs one graph a size through `run`, part by part, with the face of an ONNX Runtime session."""

    def __init__(self, build: HostedBuild, run: RunGraph) -> None:
        self._build, self._run = build, run

    def io_binding(self) -> RemoteBinding:
        return RemoteBinding()

    def run_with_iobinding(self, binding: RemoteBinding) -> None:
        width, columns = binding.inputs["attention_mask"][3][2:]
        values = {name: _view(entry) for name, entry in binding.inputs.items()}
        for graph in self._build.chains[width, columns - width]:
            given = {name: np.ascontiguousarray(values[name]) for name in graph.inputs}
            values |= self._run(graph, given)
        for name, entry in binding.outputs.items():
            np.copyto(_view(entry), values[name].reshape(entry[3]), casting="same_kind")


def _view(entry: tuple[int, int, str, tuple[int, ...]]) -> NDArray[Any]:
    """The memory of a binding as an array."""
    address, size, dtype, shape = entry
    memory: Any = (ctypes.c_char * size).from_address(address)
    array: NDArray[Any] = np.frombuffer(memory, np.dtype(dtype))
    return array.reshape(shape)


class HostedSession(CpuSession):
    """Runs "target" or "draft" of a bundle through `run`; all but the graph runtime is the CPU session's."""

    def __init__(
        self,
        bundle: Bundle,
        role: str,
        build: HostedBuild,
        run: RunGraph,
        widths: Sequence[int],
        capacity: int,
    ) -> None:
        runtime: Any = HostedRuntime(build, run)
        super().__init__(bundle, role, widths=widths, capacities=[capacity], runtime=runtime)
        self.spec = replace(self.spec, provider=PROVIDER)
        if build.htp.mask_value is not None:
            self.model = msgspec.structs.replace(self.model, mask_value=build.htp.mask_value)


def inputs_of_pass(
    bundle: Bundle, role: str, build: HostedBuild, size: tuple[int, int]
) -> list[tuple[HostedGraph, Arrays]]:
    """Sound inputs of every part of a graph, for timing it: a full pass of token 0 at the beginning of a
    text. What would come from an earlier part is zero, and so is what a draft head goes on from."""
    width, capacity = size
    seen: list[tuple[HostedGraph, Arrays]] = []

    def note(graph: HostedGraph, given: Arrays) -> Arrays:
        seen.append((graph, {name: array.copy() for name, array in given.items()}))
        return {name: np.zeros(shape, np.float32) for name, shape in graph.outputs.items()}

    session = HostedSession(bundle, role, build, note, [width], capacity)
    if (head := bundle.model(role).head) is not None:
        sizes = head.feature_size, bundle.model(role).hidden
        session.feed(States(*(np.zeros((width, size), np.float32) for size in sizes)))
    session.forward([0] * width, range(width), causal(0, width))
    return seen
