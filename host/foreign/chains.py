"""Static graphs cut in parts, on ONNX Runtime's CPU provider, with the face of one runtime session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hexgraft.host.chain import bind_chain
from hexgraft.host.cpu_graph import load_cpu_graph
from hexgraft.host.htp.runtime import RemoteBinding

_HINT = "export the graph again for ONNX Runtime, or use the context binaries"


class CpuChains:
    """Runs one graph a width, each a chain of parts (`chains`: width -> files), loaded when first used."""

    def __init__(self, chains: Mapping[int, Sequence[Path]], threads: int = 0) -> None:
        self._files, self._threads = chains, threads
        self._loaded: dict[int, list[Any]] = {}
        self._bound: dict[int, list[Any]] = {}

    def io_binding(self) -> RemoteBinding:
        return RemoteBinding()

    def run_with_iobinding(self, binding: RemoteBinding) -> None:
        """One pass through the parts of the binding's width."""
        width = binding.inputs["input_ids"][3][1]
        sessions = self._load(width)
        if width not in self._bound:
            tensors = {
                name: (address, dtype, shape)
                for name, (address, _, dtype, shape) in (binding.inputs | binding.outputs).items()
            }
            self._bound[width] = bind_chain(sessions, tensors)
        for session, bound in zip(sessions, self._bound[width], strict=True):
            session.run_with_iobinding(bound)

    def close(self) -> None:
        self._bound.clear()
        self._loaded.clear()

    def _load(self, width: int) -> list[Any]:
        if width not in self._loaded:
            self._loaded[width] = [load_cpu_graph(file, self._threads, _HINT) for file in self._files[width]]
        return self._loaded[width]
