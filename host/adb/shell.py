"""Commands on a phone over the shell protocol (v2): separate output streams, an exit status, a hang-up.

A packet is a kind byte, a 32-bit little-endian length, data. adb's own exit status is never used: it is 0
after some lost connections (adb 29) and 255 after others.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hexgraft.host.adb.errors import CommandFailed, ConnectionLost

STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
LOST_HINT = "check the cable and the phone (`hexgraft devices`), then run the command again"
_RECEIVE = 256 << 10
# adbd hands a packet on once it is whole: what of one has come when a link goes is lost.
_PACKET = 64 << 10
_KEPT = 64 << 10


def quote(text: str) -> str:
    """One word of a command. Everything in one that is not a constant goes through here."""
    return shlex.quote(text)


def service(command: str) -> str:
    """The adb service of a command in the shell protocol, without a terminal."""
    return f"shell,v2,TERM=dumb,raw:{command}"


@dataclass(frozen=True, slots=True)
class Completed:
    """How a command ended. A code above 128 is a signal's number plus 128."""

    stdout: str
    stderr: str
    code: int

    def check(self, what: str) -> str:
        """stdout, or CommandFailed with what the command said."""
        if self.code != 0:
            said = (self.stderr.strip() or self.stdout.strip()).splitlines()
            raise CommandFailed(f"{what} failed on the phone: {said[-1] if said else f'exit {self.code}'}")
        return self.stdout


class ShellStream:
    """A running command. `read` gives its standard output, `write` feeds its input.

    The end of what it said on stderr is in `errors`; `on_stderr` is told all of it as it comes. `code` is
    None until it ended by itself; `lost` tells that the link went before that.
    """

    def __init__(self, stream: socket.socket, on_stderr: Callable[[bytes], None] | None = None) -> None:
        self._socket = stream
        self._on_stderr = on_stderr
        self._input = bytearray()
        self._output = bytearray()
        self.errors = bytearray()
        self.code: int | None = None
        self.lost = False

    @property
    def ended(self) -> bool:
        return self.lost or self.code is not None

    def read(self, count: int, /) -> bytes:
        """Up to `count` bytes, at least one; b"" at the end."""
        while not self._output and not self.ended:
            self._receive()
        data = bytes(self._output[:count])
        del self._output[:count]
        return data

    def write(self, data: bytes, /) -> int:
        """Feed input; raises BrokenPipeError once the command or the link is known to be gone."""
        if self.ended:
            raise BrokenPipeError("the command has ended")
        try:
            view = memoryview(data)
            parts: list[bytes | memoryview] = []
            for start in range(0, len(data), _PACKET):
                part = view[start : start + _PACKET]
                parts += (bytes([STDIN]) + len(part).to_bytes(4, "little"), part)
            self._send(parts)
        except TimeoutError:
            raise
        except OSError as error:
            self._drain()
            raise BrokenPipeError(str(error)) from error
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def end_input(self) -> None:
        with contextlib.suppress(OSError):  # what comes back tells whether it ended well
            self._socket.sendall(bytes([CLOSE_STDIN]) + bytes(4))

    def settimeout(self, seconds: float | None) -> None:
        """How long one `read` or `write` may wait before it raises TimeoutError."""
        self._socket.settimeout(seconds)

    def poll(self) -> bool:
        """Take what has come without waiting; True if the command or the link has ended."""
        with contextlib.suppress(BlockingIOError):
            before = self._socket.gettimeout()
            self._socket.setblocking(False)
            try:
                while not self.ended:
                    self._receive()
            finally:
                self._socket.settimeout(before)
        return self.ended

    def finish(self, timeout: float, what: str) -> Completed:
        """Take everything to the end and close; `what` says what was going on, should the link be lost."""
        self._socket.settimeout(timeout)
        try:
            while not self.ended:
                self._receive()
        except TimeoutError as error:
            raise ConnectionLost(
                f"the phone did not answer within {timeout:.0f} s while {what}", LOST_HINT
            ) from error
        finally:
            self.close()
        if self.code is None:
            raise ConnectionLost(f"the connection to the phone was lost while {what}", LOST_HINT)
        output, errors = (part.decode("utf-8", "replace") for part in (self._output, self.errors))
        return Completed(output, errors, self.code)

    def close(self) -> None:
        """Hang up; the phone sends the command SIGHUP if it still runs."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send without joining what may be large, and without a message of its own for a header."""
        views = [memoryview(part) for part in parts]
        while views:
            sent = self._socket.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views:
                views[0] = views[0][sent:]

    def _receive(self) -> None:
        """Wait for the next piece and sort it."""
        try:
            data = self._socket.recv(_RECEIVE)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError:
            data = b""
        if not data:
            self.lost = self.code is None
            return
        self._input += data
        at, end = 0, len(self._input)
        while end - at >= 5:
            size = int.from_bytes(self._input[at + 1 : at + 5], "little")
            if end - at - 5 < size:
                break
            self._take(self._input[at], self._input[at + 5 : at + 5 + size])
            at += 5 + size
        del self._input[:at]

    def _take(self, kind: int, data: bytearray) -> None:
        if kind == STDOUT:
            self._output += data
        elif kind == STDERR:
            self.errors += data
            del self.errors[:-_KEPT]
            if self._on_stderr is not None:
                self._on_stderr(bytes(data))
        elif kind == EXIT and data:
            self.code = data[0]

    def _drain(self) -> None:
        """Read what came before the end, so that its cause can be told."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(1)
            while not self.ended:
                self._receive()
