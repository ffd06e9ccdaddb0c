"""An adb server of one's own: another port, another key, no USB, no network discovery."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from hexgraft.models.errors import HexgraftError

_TIMEOUT = 20.0


class AdbServer:
    """A hermetic adb server. `environment` makes every adb and adbutils of a process use it."""

    def __init__(self, adb: str) -> None:
        self.adb = adb
        self.port = _free_port()
        self._home = Path(tempfile.mkdtemp(prefix="hexgraft-adb-"))
        # With a TMPDIR of its own, the log of a server goes away with it.
        self.variables = {
            "HOME": str(self._home),
            "ANDROID_USER_HOME": str(self._home),
            "TMPDIR": str(self._home),
            "ANDROID_ADB_SERVER_PORT": str(self.port),
            "ADBUTILS_ADB_PATH": adb,
            "ADB_MDNS": "0",
            "ADB_MDNS_AUTO_CONNECT": "0",
            "ADB_USB": "0",
            "ADB_EMU": "0",
        }
        try:
            self.run("start-server")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> AdbServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANDROID_", "ADB"))}
        return kept | self.variables

    def run(self, *words: str) -> str:
        """One adb command's output, both streams; raises HexgraftError if it failed."""
        try:
            done = subprocess.run(
                [self.adb, *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_TIMEOUT,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HexgraftError(f"adb {words[0]} failed: {error}") from error
        if done.returncode != 0:
            said = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
            raise HexgraftError(f"adb {words[0]} failed: {said[-1]}")
        return done.stdout

    def connect(self, serials: Iterable[str]) -> None:
        """Connect to loopback devices; those that let nobody in are tried all the same."""
        for serial in serials:
            self._quietly("connect", serial)

    def disconnect(self, serial: str) -> None:
        """Forget a device that may be gone already."""
        self._quietly("disconnect", serial)

    def close(self) -> None:
        self._quietly("kill-server")
        deadline = time.monotonic() + 5
        while _answers(self.port) and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self._home, ignore_errors=True)

    def _quietly(self, *words: str) -> None:
        """An adb command whose failure is no matter, one that hangs included."""
        with contextlib.suppress(HexgraftError):
            self.run(*words)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if not 5554 <= port <= 5585:
            return port
