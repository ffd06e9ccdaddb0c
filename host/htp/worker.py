"""The process that runs graphs on the HTP emulator: a crash of the vendor's library ends it and nothing else.

Started by `runtime` as `python -m hexgraft.host.htp.worker FD`. Messages are JSON with a length before it
over a socket; tensors lie in shared memory.
"""

from __future__ import annotations

import json
import mmap
import socket
import sys
import time
from typing import Any

import numpy as np

from hexgraft.host.htp.qnn import qnn_options


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """One message, None once the other end is gone."""
    head = _exactly(sock, 4)
    body = _exactly(sock, int.from_bytes(head, "little")) if head else None
    return None if body is None else json.loads(body)


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    sock.sendall(len(body).to_bytes(4, "little") + body)


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            piece = sock.recv(count - len(data))
        except ConnectionError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


class _Worker:
    """Loaded graphs by name, each a chain of parts; and their bindings over the arena."""

    def __init__(self, arena: int) -> None:
        self._fd = arena
        self._arena = mmap.mmap(-1, 1)
        self._options: dict[str, str] = {}
        self._chains: dict[str, list[Any]] = {}
        self._bindings: dict[str, list[Any]] = {}

    def load(self, chain: str, files: list[str], options: dict[str, str]) -> dict[str, Any]:
        import onnxruntime as ort

        self._chains[chain] = [
            ort.InferenceSession(file, qnn_options(options, {}), providers=None) for file in files
        ]
        return {}

    def unload(self, chain: str) -> dict[str, Any]:
        """Drop a chain and all bindings to it, which must not be run any more."""
        sessions = self._chains.pop(chain)
        self._bindings = {name: held for name, held in self._bindings.items() if held[2] is not sessions}
        return {}

    def bind(self, chain: str, name: str, size: int, tensors: dict[str, list[Any]]) -> dict[str, Any]:
        """Bind `tensors` (name -> offset, dtype, shape) to a chain; what only passes between parts stays in
        this process."""
        if size > len(self._arena):
            # Bindings hold addresses of the old map, which therefore stays as long as they do.
            self._arena = mmap.mmap(self._fd, size)
        base = np.frombuffer(self._arena, np.uint8)
        between: dict[str, Any] = {}
        bindings = []
        for session in self._chains[chain]:
            binding = session.io_binding()
            for value in session.get_inputs():
                if value.name in tensors:
                    offset, dtype, shape = tensors[value.name]
                    address = base.ctypes.data + offset
                    binding.bind_input(value.name, "cpu", 0, np.dtype(dtype).type, shape, address)
                else:
                    binding.bind_ortvalue_input(value.name, between[value.name])
            for value in session.get_outputs():
                if value.name in tensors:
                    offset, dtype, shape = tensors[value.name]
                    address = base.ctypes.data + offset
                    binding.bind_output(value.name, "cpu", 0, np.dtype(dtype).type, shape, address)
                else:
                    between[value.name] = _buffer(value)
                    binding.bind_ortvalue_output(value.name, between[value.name])
            bindings.append(binding)
        self._bindings[name] = [base, bindings, self._chains[chain]]
        return {}

    def forget(self) -> dict[str, Any]:
        """Drop all bindings: what lies where in the arena is about to change."""
        self._bindings.clear()
        return {}

    def run(self, name: str) -> dict[str, Any]:
        _, bindings, sessions = self._bindings[name]
        start = time.perf_counter()
        for session, binding in zip(sessions, bindings, strict=True):
            session.run_with_iobinding(binding)
        return {"seconds": time.perf_counter() - start}


def _buffer(value: Any) -> Any:
    import onnxruntime as ort

    if value.type != "tensor(float)":
        raise TypeError(f"{value.name} passes between parts as {value.type}, expected tensor(float)")
    return ort.OrtValue.ortvalue_from_numpy(np.zeros(value.shape, np.float32))


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    worker = _Worker(int(sys.argv[2]))
    while (message := receive(sock)) is not None:
        operation = message.pop("op")
        try:
            answer = getattr(worker, operation)(**message)
        except Exception as error:  # whatever it is, the other process must hear of it
            answer = {"error": str(error).strip() or repr(error)}
        send(sock, answer)


if __name__ == "__main__":
    main()
