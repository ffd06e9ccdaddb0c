"""The device's end of adb's transport protocol: 24-byte headers, streams, one unacknowledged write each.

Facts from AOSP's packages/modules/adb (protocol.txt); version 0x01000001, so checksums are not used.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hexgraft.host.loopback.faults import Link

VERSION = 0x01000001
MAX_PAYLOAD = 1 << 20
_HEADER = struct.Struct("<4s5I")
_TOKEN = bytes(range(20))


class LinkClosed(Exception):
    """The connection to the host is gone."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What the device answers to the host's first message: its banner, or no answer that admits anybody."""

    banner: bytes
    refuse: bool


class Stream:
    """One opened service. Reads are acknowledged when taken; a write waits for the previous one's
    acknowledgement."""

    def __init__(self, transport: Transport, local: int, remote: int) -> None:
        self._transport = transport
        self._local = local
        self._remote = remote
        self._incoming: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        self._ready.set()
        self.closed = threading.Event()
        """Set when the host closed the stream, or the link is gone."""
        self._rest, self._at = b"", 0

    def read(self) -> bytes:
        """The next piece from the host, b"" when it closed the stream."""
        data = self._incoming.get()
        if data is None:
            self._incoming.put(None)
            return b""
        if not self.closed.is_set():
            self._transport.send(b"OKAY", self._local, self._remote)
        return data

    def read_exactly(self, count: int) -> bytes:
        """`count` bytes; raises LinkClosed if the stream ends before."""
        parts = bytearray()
        while len(parts) < count:
            parts += self.read_some(count - len(parts))
        return bytes(parts)

    def read_some(self, limit: int) -> bytes:
        """From one byte to `limit`, as soon as there are any; raises LinkClosed if the stream ends before."""
        if self._at == len(self._rest):
            self._rest, self._at = self.read(), 0
            if not self._rest:
                raise LinkClosed("the host closed the stream")
        taken = self._rest[self._at : self._at + limit]
        self._at += len(taken)
        return taken

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_PAYLOAD):
            self._ready.wait()
            if self.closed.is_set():
                raise LinkClosed("the host closed the stream")
            self._ready.clear()
            self._transport.send(b"WRTE", self._local, self._remote, data[start : start + MAX_PAYLOAD])

    def close(self) -> None:
        """End the stream, after the host has taken everything."""
        self._ready.wait(timeout=5)
        if not self.closed.is_set():
            self.closed.set()
            with contextlib.suppress(LinkClosed):
                self._transport.send(b"CLSE", self._local, self._remote)
        self._transport.forget(self._local)

    def deliver(self, data: bytes) -> None:
        self._incoming.put(data)

    def acknowledge(self) -> None:
        self._ready.set()

    def hang_up(self) -> None:
        self.closed.set()
        self._ready.set()
        self._incoming.put(None)


class Transport:
    """One connection from an adb server. `serve` runs until it ends."""

    def __init__(
        self,
        connection: socket.socket,
        greeting: Callable[[], Greeting],
        open_service: Callable[[str, Stream], bool],
        link: Link,
    ) -> None:
        self._socket = connection
        self._greeting = greeting
        self._open_service = open_service
        self._link = link
        self._sending = threading.Lock()
        self._streams: dict[int, Stream] = {}
        self._next = 1

    def serve(self) -> None:
        try:
            while True:
                command, first, second, data = self._receive()
                self._dispatch(command, first, second, data)
        except (LinkClosed, OSError):
            pass
        finally:
            self.cut()

    def cut(self) -> None:
        """Drop the connection. Shutdown comes first: closing alone sends nothing while a thread reads."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for stream in list(self._streams.values()):
            stream.hang_up()

    def forget(self, local: int) -> None:
        self._streams.pop(local, None)

    def send(self, command: bytes, first: int, second: int, data: bytes = b"") -> None:
        if data and self._link.carry(len(data), received=False):
            self.cut()
            raise LinkClosed("the link was cut")
        magic = int.from_bytes(command, "little") ^ 0xFFFFFFFF
        header = _HEADER.pack(command, first, second, len(data), 0, magic)
        try:
            with self._sending:
                self._socket.sendall(header + data)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def _receive(self) -> tuple[bytes, int, int, bytes]:
        command, first, second, length, _, magic = _HEADER.unpack(self._exactly(_HEADER.size))
        if magic != int.from_bytes(command, "little") ^ 0xFFFFFFFF or length > MAX_PAYLOAD:
            raise LinkClosed("not an adb message")
        return command, first, second, self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view, at = memoryview(data), 0
        while at < count:
            got = self._socket.recv_into(view[at:])
            if not got:
                raise LinkClosed("the host closed the connection")
            at += got
        return bytes(data)

    def _dispatch(self, command: bytes, first: int, second: int, data: bytes) -> None:
        if command == b"CNXN":
            greeting = self._greeting()
            if greeting.refuse:
                self.send(b"AUTH", 1, 0, _TOKEN)
            else:
                self.send(b"CNXN", VERSION, MAX_PAYLOAD, greeting.banner)
        elif command == b"AUTH" and first == 2 and self._greeting().refuse:
            # Another token asks for the next key; once out of keys the host shows its own and waits for ever.
            self.send(b"AUTH", 1, 0, _TOKEN)
        elif command == b"OPEN":
            self._open(first, data)
        elif command in (b"WRTE", b"OKAY", b"CLSE"):
            stream = self._streams.get(second)
            if stream is not None:
                self._route(command, stream, data)

    def _open(self, remote: int, data: bytes) -> None:
        local, self._next = self._next, self._next + 1
        stream = Stream(self, local, remote)
        self._streams[local] = stream
        self.send(b"OKAY", local, remote)
        if not self._open_service(data.rstrip(b"\0").decode("utf-8", "surrogateescape"), stream):
            self.forget(local)
            self.send(b"CLSE", 0, remote)

    def _route(self, command: bytes, stream: Stream, data: bytes) -> None:
        if command == b"WRTE":
            if self._link.carry(len(data), received=True):
                raise LinkClosed("the link was cut")
            stream.deliver(data)
        elif command == b"OKAY":
            stream.acknowledge()
        else:
            stream.hang_up()
