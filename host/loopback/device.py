"""The loopback device: listens on 127.0.0.1, lets an adb server in, and serves its streams."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path

from hexgraft.host.loopback.faults import Faults, Link
from hexgraft.host.loopback.phone import PhoneModel
from hexgraft.host.loopback.sandbox import Sandbox
from hexgraft.host.loopback.shell_service import ShellService
from hexgraft.host.loopback.sync_service import SyncService
from hexgraft.host.loopback.transport import Greeting, LinkClosed, Stream, Transport
from hexgraft.models.errors import UsageError

_FEATURES = ("cmd", "stat_v2", "ls_v2", "sendrecv_v2")
# adb takes listeners on these for Android emulators and connects to them uninvited.
_EMULATOR_PORTS = range(5554, 5586)


class LoopbackDevice:
    """A phone at `serial` ("127.0.0.1:PORT"). A context manager: leaving it ends everything it started.

    `folder` is kept if given, else a temporary one is made and removed. `shell` runs the commands, `toybox`
    is them: mksh and toybox are what Android has, and stricter than most systems' own.
    """

    def __init__(
        self,
        model: PhoneModel | None = None,
        *,
        folder: Path | None = None,
        port: int = 0,
        faults: Faults | None = None,
        shell: str = "/bin/sh",
        toybox: Path | None = None,
    ) -> None:
        self.model = model or PhoneModel()
        self.faults = faults or Faults()
        self.link = Link(self.faults)
        self._listener = _listen(port)
        self._own = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="hexgraft-phone-"))
        self.sandbox = Sandbox(self._folder, self.model, shell, toybox)
        self._transports: set[Transport] = set()
        self._closing = False
        self.port: int = self._listener.getsockname()[1]
        self.serial = f"127.0.0.1:{self.port}"
        self._accept()

    def __enter__(self) -> LoopbackDevice:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Switch the phone off: the link, every process, and the folder if it is its own."""
        self._closing = True
        self._stop_listening()
        self.sandbox.kill_all()
        if self._own:
            shutil.rmtree(self._folder, ignore_errors=True)

    def drop(self) -> None:
        """Pull the cable: the host's connections end, the phone's processes learn of it from adbd."""
        for transport in list(self._transports):
            transport.cut()

    def reboot(self) -> None:
        """Go down and come up: no process survives, the boot id is another one."""
        self._stop_listening()
        self.sandbox.kill_all()
        self.sandbox.boot()
        self._listener = _listen(self.port)
        self._accept()

    def set_space(self, total: int | None) -> None:
        """The size of the data partition in bytes; None for the real one's."""
        self.faults.space = total
        self.sandbox.limit_space(total)

    def set_noexec(self, on: bool) -> None:
        self.faults.noexec = on
        self.sandbox.forbid_exec(on)

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        listener = self._listener

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        transport = Transport(connection, self._greeting, self._open, self.link)
        self._transports.add(transport)
        try:
            transport.serve()
        finally:
            self._transports.discard(transport)

    def _greeting(self) -> Greeting:
        features = ",".join(_FEATURES if self.faults.no_shell_v2 else ("shell_v2", *_FEATURES))
        return Greeting(self.model.banner(features), self.faults.refuse)

    def _open(self, service: str, stream: Stream) -> bool:
        """Start a service on a thread of its own; False for one this device does not have."""
        name, _, rest = service.partition(":")
        kind, *arguments = name.split(",")
        if service == "sync:":
            serve = SyncService(self.sandbox, self.faults, stream).serve
        elif kind in ("shell", "exec") and rest and not ("v2" in arguments and self.faults.no_shell_v2):
            packets = kind == "shell" and "v2" in arguments
            serve = ShellService(self.sandbox, self.faults, stream, rest, packets=packets).serve
        else:
            return False

        def run() -> None:
            try:
                with contextlib.suppress(LinkClosed):
                    serve()
            finally:
                stream.close()

        threading.Thread(target=run, daemon=True).start()
        return True


def _listen(port: int) -> socket.socket:
    """A listening socket on 127.0.0.1; port 0 picks one that adb does not take for an emulator."""
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            listener.close()
            raise UsageError(
                f"--port {port} cannot be had: {error.strerror}", "leave out --port, and a free one is taken"
            ) from error
        if port or listener.getsockname()[1] not in _EMULATOR_PORTS:
            listener.listen(16)
            return listener
        listener.close()
