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

from hexgraft.host.chain import bind_chain
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
        bindings = bind_chain(
            self._chains[chain],
            {
                name: (base.ctypes.data + offset, dtype, shape)
                for name, (offset, dtype, shape) in tensors.items()
            },
        )
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
