"""The adb server of this machine: connections to it through adbutils, its version, the devices it lists."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from hexgraft.host.adb.address import check_port, server_address
from hexgraft.host.adb.errors import ConnectionLost, NoAdb

INSTALL_HINT = 'install what phones need: pip install "hexgraft[device]"'
_CONTROL_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the server's list. `state` is "device" for a phone that can be used."""

    serial: str
    state: str
    model: str
    product: str
    transport_id: int | None

    @property
    def ready(self) -> bool:
        return self.state == "device"


class ServiceRefused(Exception):
    """What the server or the phone said instead of OKAY."""


def find_adb() -> str:
    """The adb program: $ADBUTILS_ADB_PATH, the one in PATH, or the one that adbutils brings."""
    adbutils = _adbutils()
    try:
        return str(adbutils.adb_path())
    except adbutils.AdbError as error:
        raise NoAdb("there is no adb on this machine", "Debian: apt-get install adb") from error


def _adbutils() -> Any:
    check_port()
    try:
        import adbutils
    except ImportError as error:
        raise NoAdb("adbutils is not installed", INSTALL_HINT) from error
    return adbutils


class Server:
    """The server that adb's variables name (`server_address`), or the usual one; started when it does not run
    and is one of this machine."""

    def __init__(self) -> None:
        self._adbutils: Any = _adbutils()
        self.adb = find_adb()
        self.address = server_address()
        self._client = self._adbutils.AdbClient(self.address.host, self.address.port)

    def version(self) -> int:
        """The server's protocol version; a client of another one kills it and starts its own."""
        with self._talk() as connection:
            self._ask(connection, "host:version")
            return int(connection.read_string_block(), 16)

    def client_version(self) -> str:
        """What `adb --version` says of itself: protocol version and release, "1.0.41 29.0.6-debian"."""
        words = [self.adb, "--version"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_CONTROL_TIMEOUT, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoAdb(f"{self.adb} cannot be run", "Debian: apt-get install adb") from error
        lines = done.stdout.splitlines()
        return " ".join(line.split()[-1] for line in lines[:2])

    def devices(self) -> list[Listed]:
        """Every phone the server knows of, in whatever state."""
        with self._talk() as connection:
            self._ask(connection, "host:devices-l")
            return parse_devices(connection.read_string_block())

    def features(self, listed: Listed) -> set[str]:
        with self._talk() as connection:
            self._ask(connection, f"{_selector(listed)}:features")
            return set(connection.read_string_block().split(","))

    def open(self, listed: Listed, service: str) -> socket.socket:
        """A raw stream to a service of a phone, for the caller to close. ConnectionLost, ServiceRefused."""
        connection = self._connect()
        try:
            # Two phones may report one serial number; the transport's number is unique.
            chosen = f"host:transport-id:{listed.transport_id}" if listed.transport_id else None
            self._ask(connection, chosen or f"host:transport:{listed.serial}")
            self._ask(connection, service)
        except BaseException:
            connection.close()
            raise
        found: socket.socket = connection.conn
        found.settimeout(None)
        return found

    @contextlib.contextmanager
    def _talk(self) -> Any:
        connection = self._connect()
        try:
            yield connection
        except (OSError, EOFError, ValueError, self._adbutils.AdbError) as error:
            raise ConnectionLost(f"the adb server went away: {error}", "run the command again") from error
        except ServiceRefused as error:
            raise ConnectionLost(f"the adb server says: {error}", "run the command again") from error
        finally:
            connection.close()

    def _connect(self) -> Any:
        try:
            self._find()
            return self._client.make_connection(timeout=_CONTROL_TIMEOUT)
        except (OSError, subprocess.SubprocessError, self._adbutils.AdbError) as error:
            hint = "try `adb kill-server`, then `adb devices`"
            if not self.address.local:
                hint = f"start it there (`adb -a nodaemon server`), or unset {self.address.variable}"
            raise NoAdb(f"the adb server at {self.address} does not answer: {error}", hint) from error

    def _find(self) -> None:
        """See that the server takes connections; raises OSError where it does not and cannot be started."""
        try:
            with socket.socket() as probe:  # of IPv4, as adbutils'
                probe.settimeout(_CONTROL_TIMEOUT)
                probe.connect((self.address.host, self.address.port))
        except OSError:
            if not self.address.local:
                raise
            self._start()

    def _start(self) -> None:
        """Start the server. adbutils would too, and have adb's words about its daemon stand among ours."""
        with tempfile.TemporaryFile() as said:  # a pipe would stay open for as long as the daemon lives
            # -P goes before all variables: by ADB_SERVER_SOCKET=tcp:127.0.0.1:PORT adb starts none.
            words = [self.adb, "-P", str(self.address.port), "start-server"]
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=_CONTROL_TIMEOUT
            )
            if done.returncode != 0:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                raise OSError(lines[-1] if lines else f"{self.adb} cannot start it")

    def _ask(self, connection: Any, service: str) -> None:
        """Send a request and take the answer. adbutils' own way may send half of a long one."""
        data = service.encode("utf-8")
        if len(data) > 0xFFFF:
            raise ServiceRefused(f"a request of {len(data)} bytes is more than adb takes")
        try:
            connection.conn.sendall(f"{len(data):04x}".encode() + data)
            status = connection.read(4)
            if status == b"OKAY":
                return
            reason = connection.read_string_block() if status == b"FAIL" else ""
        except (OSError, EOFError, ValueError, self._adbutils.AdbError) as error:
            raise ConnectionLost(f"the adb server went away: {error}", "run the command again") from error
        if not reason:
            raise ConnectionLost("the adb server closed the connection", "run the command again")
        raise ServiceRefused(" ".join(reason.split()))  # adb's own words are several lines


def _selector(listed: Listed) -> str:
    return (
        f"host-transport-id:{listed.transport_id}" if listed.transport_id else f"host-serial:{listed.serial}"
    )


_FACT = re.compile(r"\s+(usb|product|model|device|transport_id):(\S*)$")
# A state is one word but for the first kind. A serial may hold spaces: "adb-R5 (2)._adb-tls-connect._tcp".
_STATES = (re.compile(r"(.+?)\s+(no permissions.*)"), re.compile(r"(.*\S)\s+(\S+)"))


def parse_devices(text: str) -> list[Listed]:
    """The lines of `adb devices -l`. A state may have several words ("no permissions; see [...]")."""
    found = []
    for line in text.splitlines():
        rest, facts = line.strip(), {}
        while fact := _FACT.search(rest):
            facts[fact[1]] = fact[2]
            rest = rest[: fact.start()]
        parts = next((match for kind in _STATES if (match := kind.fullmatch(rest))), None)
        if parts is None:
            continue
        number = facts.get("transport_id", "")
        found.append(
            Listed(
                serial=parts[1],
                state=parts[2],
                model=facts.get("model", "").replace("_", " "),
                product=facts.get("product", ""),
                transport_id=int(number) if number.isdigit() else None,
            )
        )
    return found
