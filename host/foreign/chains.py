"""Static graphs cut in parts, on ONNX Runtime's CPU provider, with the face of one runtime session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from hexgraft.host.chain import bind_chain
from hexgraft.host.htp.runtime import RemoteBinding
from hexgraft.models.errors import BundleError


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
            self._loaded[width] = [load_part(file, self._threads) for file in self._files[width]]
        return self._loaded[width]


def load_part(file: Path, threads: int) -> Any:
    """A runtime session of one part; raises BundleError in one line where the runtime refuses it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises types of its own that share no base class but this one
        reason = str(error).strip().splitlines()[0]
        raise BundleError(
            f"ONNX Runtime {ort.__version__} cannot load {file}: {reason}",
            "export the graph again for ONNX Runtime, or use the context binaries",
        ) from error
