"""One phone: commands on it, whether it can be used, and getting it back after a lost link."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from hexgraft.host.adb.choice import choose, complain
from hexgraft.host.adb.errors import ConnectionLost, NoDevice
from hexgraft.host.adb.server import Listed, Server, ServiceRefused
from hexgraft.host.adb.shell import LOST_HINT, Completed, ShellStream, service
from hexgraft.models.errors import UsageError
from hexgraft.models.file_names import is_utf8

ROOT = "/data/local/tmp/hexgraft"
"""Where everything of ours lies on a phone. Not on /sdcard, from which nothing can be run."""

TIMEOUT = 30.0


class Phone:
    """A phone that is authorised and speaks the shell protocol. `root` is our folder on it."""

    def __init__(self, server: Server, listed: Listed, root: str = ROOT) -> None:
        self.server = server
        self.listed = listed
        self.root = check_root(root)

    @property
    def serial(self) -> str:
        return self.listed.serial

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.listed.model or 'phone'} ({self.serial})"

    def start(self, command: str, on_stderr: Callable[[bytes], None] | None = None) -> ShellStream:
        """Run a command; the caller reads its stream and closes it."""
        return ShellStream(self._open(service(command)), on_stderr)

    def run(self, command: str, what: str = "running a command", timeout: float = TIMEOUT) -> Completed:
        """Run a command to its end. ConnectionLost names `what` if the link goes meanwhile."""
        stream = self.start(command)
        stream.end_input()
        return stream.finish(timeout, what)

    def wait(self, seconds: float) -> None:
        """Wait for the phone to come back after a lost link; raises NoDevice or ConnectionLost."""
        deadline = time.monotonic() + seconds
        pause = 0.1
        while True:
            state = self._look()
            if state == "device":
                return
            if state == "unauthorized":
                raise complain(self.listed)
            if time.monotonic() >= deadline:
                raise ConnectionLost(
                    f"{self.name} did not come back within {seconds:.0f} s ({state})",
                    "a network connection may have to be made again: adb connect " + self.serial
                    if ":" in self.serial
                    else LOST_HINT,
                )
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)

    def _look(self) -> str:
        """The phone's state now, and its present entry in the list: a reconnect changes its number."""
        found = [listed for listed in self.server.devices() if listed.serial == self.serial]
        if not found:
            return "not listed"
        self.listed = found[0]
        if self.listed.ready:
            try:
                self.run("true", timeout=5)
            except ConnectionLost:
                return "not answering"
        return self.listed.state

    def _open(self, wanted: str) -> socket.socket:
        try:
            return self.server.open(self.listed, wanted)
        except ServiceRefused as error:
            raise ConnectionLost(f"the connection to {self.name} is gone: {error}", LOST_HINT) from error


def open_phone(serial: str | None = None, root: str = ROOT, *, patience: float = 15.0) -> Phone:
    """The phone of this serial, or the only one there is; raises NoDevice with what to type.

    `patience` is how long to wait in seconds for a phone that is offline, as just after plugging it in.
    """
    server = Server()
    phone = Phone(server, choose(server, serial, patience), root)
    if "shell_v2" not in server.features(phone.listed):
        raise NoDevice(
            f"{phone.name} does not speak adb's shell protocol: its Android is older than 7",
            "use a phone with Android 7 or newer",
        )
    return phone


def await_phone(serial: str | None = None, root: str = ROOT, *, seconds: float) -> Phone:
    """`open_phone`, for a phone that is away and may come back, as after a lost link or a reboot."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            phone = open_phone(serial, root, patience=0)
            phone.wait(0)
            return phone
        except (NoDevice, ConnectionLost):
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.3)


def check_root(root: str) -> str:
    """A folder on the phone that may be ours: absolute, plain, and two levels deep at least."""
    parts = root.strip("/").split("/")
    if not is_utf8(root):
        raise UsageError(f"--root {root} is not in UTF-8, as adb wants it", f"example: --root {ROOT}")
    if not root.startswith("/") or len(parts) < 2 or {"", ".", ".."} & set(parts) or "\n" in root:
        raise UsageError(
            f"--root {root!r} is not a folder of its own on the phone", f"example: --root {ROOT}"
        )
    if parts[0] in ("sdcard", "storage", "mnt"):
        raise UsageError(
            f"--root {root} is on shared storage, where nothing can be run", f"example: --root {ROOT}"
        )
    return "/" + "/".join(parts)
