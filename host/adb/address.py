"""Where the adb server is: what adb's own variables name, as far as adbutils can reach it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hexgraft.models.errors import UsageError

SOCKET = "ADB_SERVER_SOCKET"
HOSTS = ("ANDROID_ADB_SERVER_ADDRESS", "ANDROID_ADB_SERVER_HOST")  # adb's, and adbutils' own
PORT = "ANDROID_ADB_SERVER_PORT"
_LOCAL = "127.0.0.1"
_USUAL = 5037


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port. `variable` named it; empty where none did and it is the usual one."""

    host: str
    port: int
    variable: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether a server of this machine would have it, so that one may be started there."""
        return self.host in (_LOCAL, "localhost")


def server_address() -> Address:
    """What adb itself would connect to: its socket goes before its host and port. Raises UsageError for what
    it would not take, and for what adbutils cannot reach."""
    check_port()
    spec = os.environ.get(SOCKET)
    if spec is not None:
        return _of_socket(spec)
    named = next((name for name in HOSTS if name in os.environ), None)
    host, port = os.environ[named] if named else _LOCAL, os.environ.get(PORT)
    if not _is_host(host):
        raise UsageError(
            f"{named} is {host!r}, which adbutils cannot reach", f"unset it, or make it {_LOCAL}"
        )
    return Address(host, int(port or _USUAL), named or (PORT if port is not None else ""))


def check_port() -> None:
    """Raises UsageError for a port that is none. Whatever else is set, adbutils reads it as it is imported,
    and adb itself before it says its version."""
    port = os.environ.get(PORT)
    if port is not None and not _is_port(port):
        raise UsageError(f"{PORT} is {port!r}, no port", f"unset it, or make it {_USUAL}")


def _of_socket(spec: str) -> Address:
    """`tcp:PORT` or `tcp:HOST:PORT`. adb also knows sockets of the file system and others, adbutils does
    not; without a port adb would take 5555, which is a phone's and no server's."""
    kind, _, rest = spec.partition(":")
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not _is_port(port) or not (rest == port or _is_host(host)):
        raise UsageError(
            f"{SOCKET} is {spec!r}, which adbutils cannot reach",
            f"unset it, or make it tcp:{_LOCAL}:{_USUAL}",
        )
    return Address(host or _LOCAL, int(port), SOCKET)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 1 << 16


def _is_host(text: str) -> bool:
    """A name or an IPv4 address: adbutils' sockets have no other."""
    return re.fullmatch(r"[A-Za-z0-9._-]+", text) is not None
