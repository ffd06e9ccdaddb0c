"""Graphs on the HTP emulator in a process of their own, with the face of an ONNX Runtime session."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hexgraft.host.htp.worker import receive, send
from hexgraft.models.errors import DecodeError

_ALIGN = 4096
_LOADED = 3
"""Graphs kept loaded at a time: those of prefill, trees and plain decoding."""

Size = tuple[int, int]
"""Rows T and cache slots C of a graph."""


@dataclass(slots=True)
class RemoteBinding:
    """What one pass reads and writes: name -> address here, bytes, dtype, shape. Made by `io_binding`."""

    inputs: dict[str, tuple[int, int, str, tuple[int, ...]]] = field(default_factory=dict)
    outputs: dict[str, tuple[int, int, str, tuple[int, ...]]] = field(default_factory=dict)
    name: str = ""

    def bind_input(
        self, name: str, device: str, index: int, dtype: Any, shape: Sequence[int], address: int
    ) -> None:
        self.inputs[name] = _entry(dtype, shape, address)

    def bind_output(
        self, name: str, device: str, index: int, dtype: Any, shape: Sequence[int], address: int
    ) -> None:
        self.outputs[name] = _entry(dtype, shape, address)


def _entry(dtype: Any, shape: Sequence[int], address: int) -> tuple[int, int, str, tuple[int, ...]]:
    kind = np.dtype(dtype)
    return address, int(np.prod(shape)) * kind.itemsize, kind.str, tuple(shape)


def _words(graph: Size) -> str:
    return f"the graph of {graph[0]} rows over {graph[1]} slots"


class HtpRuntime:
    """Runs one graph a size, each a chain of parts (`chains`: (T, C) -> wrapper files), loaded when first
    used.

    `options` go to the provider ("soc_model", ...). Raises DecodeError when the vendor's library refuses a
    graph or takes its process down.
    """

    def __init__(self, chains: Mapping[Size, Sequence[Path]], options: Mapping[str, str]) -> None:
        self._files = {size: [str(file) for file in files] for size, files in chains.items()}
        self._options = dict(options)
        self._loaded: list[Size] = []
        self._names = 0
        self._bound: dict[str, Size] = {}
        self._regions: dict[tuple[int, int], int] = {}
        self._size = _ALIGN
        self._fd = os.memfd_create("hexgraft-htp")
        os.ftruncate(self._fd, self._size)
        self._arena = np.frombuffer(mmap.mmap(self._fd, self._size), np.uint8)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "hexgraft.host.htp.worker", str(theirs.fileno()), str(self._fd)]
        self.process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), self._fd),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._complaints,
            start_new_session=True,  # an interrupt is ours to handle
        )
        theirs.close()

    def io_binding(self) -> RemoteBinding:
        return RemoteBinding()

    def run_with_iobinding(self, binding: RemoteBinding) -> None:
        """One pass: inputs are copied to shared memory, the chain runs there, outputs are copied back."""
        width, columns = binding.inputs["attention_mask"][3][2:]
        graph = width, columns - width
        self._load(graph)
        if binding.name not in self._bound:
            self._bind(binding, graph)
        for address, size, _, _ in binding.inputs.values():
            ctypes.memmove(self._base() + self._regions[address, size], address, size)
        self._call({"op": "run", "name": binding.name}, f"running {_words(graph)}")
        for address, size, _, _ in binding.outputs.values():
            ctypes.memmove(address, self._base() + self._regions[address, size], size)

    def forget(self) -> None:
        """Drop all bindings, so that others may take their room: the buffers they were made for are gone."""
        if self._bound:
            self._call({"op": "forget"}, "dropping bindings")
        self._bound.clear()
        self._regions.clear()
        self._size = _ALIGN

    def close(self) -> None:
        """End the process. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._complaints.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _load(self, graph: Size) -> None:
        """Load a size's graph; the one unused for longest makes room, as each holds all weights."""
        if graph in self._loaded:
            self._loaded.remove(graph)
        else:
            if len(self._loaded) == _LOADED:
                gone = self._loaded.pop(0)
                self._call({"op": "unload", "chain": str(gone)}, f"unloading {_words(gone)}")
                self._bound = {name: bound for name, bound in self._bound.items() if bound != gone}
            load = {"op": "load", "chain": str(graph), "files": self._files[graph], "options": self._options}
            self._call(load, f"loading {_words(graph)}")
        self._loaded.append(graph)

    def _bind(self, binding: RemoteBinding, graph: Size) -> None:
        tensors = {}
        for name, (address, size, dtype, shape) in (binding.inputs | binding.outputs).items():
            if (address, size) not in self._regions:
                self._regions[address, size] = self._size
                self._size = -(-(self._size + size) // _ALIGN) * _ALIGN
            tensors[name] = [self._regions[address, size], dtype, list(shape)]
        if self._size > len(self._arena):
            os.ftruncate(self._fd, self._size)
            self._arena = np.frombuffer(mmap.mmap(self._fd, self._size), np.uint8)
        self._names += 1
        binding.name = str(self._names)
        self._bound[binding.name] = graph
        message = {"op": "bind", "chain": str(graph), "name": binding.name, "size": self._size}
        self._call({**message, "tensors": tensors}, f"binding {_words(graph)}")

    def _base(self) -> int:
        return int(self._arena.ctypes.data)

    def _call(self, message: dict[str, Any], doing: str) -> dict[str, Any]:
        if self._fd < 0:
            raise DecodeError("this session is closed")
        answer = None
        try:
            with contextlib.suppress(ConnectionError):
                send(self._socket, message)
                answer = receive(self._socket)
        except BaseException:
            self.process.kill()  # half a conversation cannot be taken up again
            raise
        if answer is None:
            raise self._lost(doing)
        if "error" in answer:
            reason = str(answer["error"]).splitlines()[0]
            raise DecodeError(
                f"the HTP emulator failed while {doing}: {reason}",
                "export the bundle again, or compare with --backend cpu",
            )
        return answer

    def _lost(self, doing: str) -> DecodeError:
        code = self.process.wait()
        ended = f"ended with code {code}"
        if code < 0:
            ended = f"crashed ({signal.Signals(-code).name})"
        self._complaints.seek(0)
        lines = self._complaints.read().decode(errors="replace").strip().splitlines()
        said = f"; its last words: {lines[-1]}" if lines else ""
        return DecodeError(
            f"the HTP emulator's process {ended} while {doing}{said}",
            "binaries that share weights cannot be loaded here; otherwise free some memory, or export again",
        )
