"""Runs a model's float32 graph a few layers at a time, so that no more weights than theirs are in memory.

The numbers are the whole graph's, bit by bit: the same operators over the same bytes, in several sessions.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from hexgraft.export.htp.network import Network, external
from hexgraft.export.htp.parts import plan_parts, split

_LARGE = 1 << 30
"""Bytes of weights from which on a model is large: its weights stay in the mapped file, as packed copies
would double them, and only those of a few layers are read at a time."""
_PART = 512 << 20
"""Bytes of weights in memory at a time, unless one layer or the head has more."""

Observe = Callable[[onnx.GraphProto], None]
Place = tuple[Any, tuple[int, ...], int]
"""Type, shape and address of a buffer."""


@dataclass(slots=True)
class LayeredBinding:
    """What one pass reads and writes, by name; `parts` are the runtime's own bindings, made at the first
    run."""

    inputs: dict[str, Place] = field(default_factory=dict)
    outputs: dict[str, Place] = field(default_factory=dict)
    parts: list[ort.IOBinding] = field(default_factory=list)

    def bind_input(
        self, name: str, device: str, index: int, dtype: Any, shape: Sequence[int], address: int
    ) -> None:
        self.inputs[name] = dtype, tuple(shape), address

    def bind_output(
        self, name: str, device: str, index: int, dtype: Any, shape: Sequence[int], address: int
    ) -> None:
        self.outputs[name] = dtype, tuple(shape), address


class LayeredRuntime:
    """The float32 graph of `network` with the face of an ONNX Runtime session, as a `CpuSession` uses it.

    A large model runs in parts, and the pages of the weights a part has read are let go of behind it; others
    run whole. `observe` may add nodes and outputs to each part; what these outputs, as far as nobody has
    bound them, were in the last pass is in `observed`, one dictionary a part.
    """

    def __init__(self, network: Network, threads: int = 0, observe: Observe | None = None) -> None:
        self._weights = _MappedWeights(network.folder) if is_large(network) else None
        self.observed: list[dict[str, NDArray[np.float32]]] = []
        self._sessions: list[ort.InferenceSession] = []
        cuts = _cuts(network) if self._weights else []
        parts = split(network.proto, cuts, network.model.hidden, "T")
        self._passed = {value.name for part in parts for value in part.graph.input}
        self._passed -= {value.name for value in network.proto.graph.input}
        for part in parts:
            proto = onnx.ModelProto()
            proto.CopyFrom(part)
            if observe is not None:
                observe(proto.graph)
            self._sessions.append(_session(proto, network.folder, threads, self._weights))

    def io_binding(self) -> LayeredBinding:
        return LayeredBinding()

    def run_with_iobinding(self, binding: LayeredBinding) -> None:
        """One pass through all parts."""
        binding.parts = binding.parts or [self._bind(session, binding) for session in self._sessions]
        self.observed = []
        passed: dict[str, ort.OrtValue] = {}
        for session, part in zip(self._sessions, binding.parts, strict=True):
            for value in session.get_inputs():
                if value.name in passed:
                    part.bind_ortvalue_input(value.name, passed[value.name])
            session.run_with_iobinding(part)
            names = [value.name for value in session.get_outputs()]
            given = dict(zip(names, part.get_outputs(), strict=True))
            passed |= {name: given[name] for name in names if name in self._passed}
            free = [name for name in names if name not in binding.outputs and name not in self._passed]
            self.observed.append({name: given[name].numpy() for name in free})
            if self._weights is not None:
                self._weights.release()

    @staticmethod
    def _bind(session: ort.InferenceSession, binding: LayeredBinding) -> ort.IOBinding:
        part = session.io_binding()
        for value in session.get_inputs():
            if value.name in binding.inputs:
                dtype, shape, address = binding.inputs[value.name]
                part.bind_input(value.name, "cpu", 0, dtype, shape, address)
        for value in session.get_outputs():
            if value.name in binding.outputs:
                dtype, shape, address = binding.outputs[value.name]
                part.bind_output(value.name, "cpu", 0, dtype, shape, address)
            else:
                part.bind_output(value.name, "cpu")
        return part


class _MappedWeights:
    """The weights files of a folder, mapped; their pages count as memory from their use until `release`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}
        self._values: list[ort.OrtValue] = []
        """Sessions read these where they lie, and keep none of them alive."""

    def value(self, place: tuple[str, int, int], shape: Sequence[int]) -> ort.OrtValue:
        """The float32 numbers at (file, offset, length), not copied."""
        file, offset, length = place
        if file not in self._maps:
            with (self._folder / file).open("rb") as stream:
                self._maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        numbers = np.frombuffer(self._maps[file], np.float32, length // 4, offset)
        self._values.append(ort.OrtValue.ortvalue_from_numpy(numbers.reshape(tuple(shape))))
        return self._values[-1]

    def release(self) -> None:
        """Let go of all pages: they are still in the system's cache when they are read again, if it has
        room."""
        if hasattr(mmap, "MADV_DONTNEED"):  # Windows trims a process by itself
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)


def is_large(network: Network) -> bool:
    """Whether the float32 weights run in parts."""
    return 4 * network.model.parameters > _LARGE


def float_runtime(network: Network, threads: int = 0) -> LayeredRuntime | None:
    """What runs the float32 graph of a large model in a `CpuSession`; None where the session's own does."""
    return LayeredRuntime(network, threads) if is_large(network) else None


def _cuts(network: Network) -> list[str]:
    """Values to cut after. An embedding counts nothing: a pass reads its own tokens' rows alone."""
    layers, head = network.matrix_sizes(lambda weight: 32)
    return plan_parts(max(layers), len(layers), 0, head, max(_PART, head, *layers))


def _session(
    proto: onnx.ModelProto, folder: Path, threads: int, weights: _MappedWeights | None
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # By the place in the file: what is observed of a value comes directly behind it, not with all else at the
    # end, when every value of the pass would have to be kept.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    key = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(key, str(folder))
    if weights is not None:
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = False
        for tensor in proto.graph.initializer:
            place = external(tensor)
            if place is not None:
                options.add_initializer(tensor.name, weights.value(place, tensor.dims))
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
