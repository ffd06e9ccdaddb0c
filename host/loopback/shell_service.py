"""The device's command services: `shell` in both protocols, and `exec`.

As in AOSP's shell_service.cpp, a hang-up reaches the shell's own process and none of its children.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import IO

from hexgraft.host.loopback.faults import Faults
from hexgraft.host.loopback.sandbox import Sandbox
from hexgraft.host.loopback.transport import LinkClosed, Stream

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
_READ = 64 << 10
_PIPE = 1 << 20


class ShellService:
    """One command and the stream that carries its input and output."""

    def __init__(self, sandbox: Sandbox, faults: Faults, stream: Stream, command: str, *, packets: bool):
        self._sandbox = sandbox
        self._faults = faults
        self._stream = stream
        self._packets = packets
        self._fed = 0
        self._sending = threading.Lock()
        self._process = subprocess.Popen(
            [sandbox.shell, "-c", sandbox.command(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if packets else subprocess.STDOUT,
            cwd=sandbox.folder,
            env=sandbox.environment(),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # a limit of the machine's; small pipes are only slower
            fcntl.fcntl(self._process.stdin, fcntl.F_SETPIPE_SZ, _PIPE)

    def serve(self) -> None:
        """Carry data both ways until the command's outputs end or the host hangs up."""
        pipes = [(STDOUT, self._process.stdout)]
        if self._packets:
            pipes.append((STDERR, self._process.stderr))
        pumps = [threading.Thread(target=self._pump, args=pipe, daemon=True) for pipe in pipes]
        feeder = threading.Thread(target=self._feed, daemon=True)
        for thread in (*pumps, feeder):
            thread.start()
        threading.Thread(target=self._watch, daemon=True).start()
        for thread in pumps:
            thread.join()
        code = self._process.wait()
        if self._packets and not self._stream.closed.is_set():
            status = code if code >= 0 else 0x80 | -code
            with contextlib.suppress(LinkClosed):
                self._send(EXIT, bytes([status & 0xFF]))

    def _watch(self) -> None:
        """Hang up the shell when the host does."""
        while self._process.poll() is None:
            if self._stream.closed.wait(timeout=0.2):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process.pid, signal.SIGHUP)
                break
        # Children may keep the pipes open; nobody reads them any more.
        self._process.wait()

    def _pump(self, kind: int, pipe: IO[bytes]) -> None:
        with pipe:
            while data := os.read(pipe.fileno(), _READ):
                try:
                    self._send(kind, data)
                except LinkClosed:
                    return

    def _send(self, kind: int, data: bytes) -> None:
        with self._sending:
            self._stream.write(
                bytes([kind]) + len(data).to_bytes(4, "little") + data if self._packets else data
            )

    def _feed(self) -> None:
        """Standard input from the host; closing it is a packet in one protocol and a hang-up in the other."""
        assert self._process.stdin is not None
        with contextlib.suppress(LinkClosed, OSError, ValueError), self._process.stdin as pipe:
            for data in iter(self._next_input(), b""):
                pipe.write(self._spoil(data))
                pipe.flush()
                self._count(len(data))

    def _next_input(self) -> Callable[[], bytes]:
        if not self._packets:
            return self._stream.read

        kind, left = STDIN, 0

        def piece() -> bytes:
            # As ShellProtocol::Read does: what is there of a packet is passed on, the rest follows. A cut
            # link thus loses the adb message it falls into, not the whole packet.
            nonlocal kind, left
            while True:
                while not left:
                    header = self._stream.read_exactly(5)
                    kind, left = header[0], int.from_bytes(header[1:], "little")
                    if kind == CLOSE_STDIN:
                        return b""
                data = self._stream.read_some(left)
                left -= len(data)
                if kind == STDIN:
                    return data

        return piece

    def _spoil(self, data: bytes) -> bytes:
        """Flip the byte the faults ask for, once."""
        spot = self._faults.corrupt
        if spot is None or not self._fed <= spot < self._fed + len(data):
            return data
        self._faults.corrupt = None
        spot -= self._fed
        return data[:spot] + bytes([data[spot] ^ 1]) + data[spot + 1 :]

    def _count(self, count: int) -> None:
        self._fed += count
        limit = self._faults.kill_after
        if limit is not None and self._fed >= limit:
            self._faults.kill_after = None
            self._sandbox.kill_all()
