"""Which adb server is talked to: what adb's own variables name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from device_command import Hexgraft
from phones import Connect

from hexgraft.host.adb.address import Address, server_address
from hexgraft.host.adb.errors import NoAdb
from hexgraft.host.adb.server import Server
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import NO_DEVICE, USAGE, UsageError

SOCKET = "ADB_SERVER_SOCKET"
HOST, ITS_OWN_HOST = "ANDROID_ADB_SERVER_ADDRESS", "ANDROID_ADB_SERVER_HOST"
PORT = "ANDROID_ADB_SERVER_PORT"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SOCKET, HOST, ITS_OWN_HOST, PORT):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A server on an address that is not the usual one of this machine; it knows its version and no more."""
    with socket.create_server(("127.0.0.2", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(100):  # else it was asked only whether it is there
                        connection.sendall(b"OKAY00040029")

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.2:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, Address("127.0.0.1", 5037)),
        ({PORT: "6000"}, Address("127.0.0.1", 6000, PORT)),
        ({HOST: "lab-7.local"}, Address("lab-7.local", 5037, HOST)),
        ({HOST: "10.0.0.7", ITS_OWN_HOST: "lab", PORT: "6000"}, Address("10.0.0.7", 6000, HOST)),
        ({ITS_OWN_HOST: "lab"}, Address("lab", 5037, ITS_OWN_HOST)),
        ({SOCKET: "tcp:6000"}, Address("127.0.0.1", 6000, SOCKET)),
        ({SOCKET: "tcp:localhost:6000", HOST: "lab", PORT: "6001"}, Address("localhost", 6000, SOCKET)),
        ({SOCKET: "tcp:10.0.0.7:6000"}, Address("10.0.0.7", 6000, SOCKET)),
    ],
)
def test_addresses(variables: dict[str, str], address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert server_address() == address
    assert address.local == (address.host in ("127.0.0.1", "localhost"))


@pytest.mark.parametrize(
    ("name", "value"),
    [(PORT, port) for port in ("", "abc", "99999", "-1", "0", "\u0665\u0660")]
    + [(name, host) for name in (HOST, ITS_OWN_HOST) for host in ("", "::1", "a b")]
    + [
        (SOCKET, spec)
        for spec in ("", "5037", "tcp:", "tcp:lab", "tcp:0", "tcp:lab:0", "tcp::5037", "tcp:[::1]:5037")
    ]
    + [(SOCKET, "localfilesystem:/run/adb.sock"), (SOCKET, "vsock:3:5037")],
)
def test_addresses_that_cannot_be_reached(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as raised:
        server_address()
    assert raised.value.message.startswith(f"{name} is {value!r}, ")
    assert str(raised.value.hint).startswith("unset it, or make it ")


def test_a_socket_that_cannot_be_reached_is_a_mistake_in_usage(
    hexgraft: Hexgraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET, "localfilesystem:/run/adb.sock")
    result = hexgraft("devices")
    assert result.code == USAGE
    assert f"error: {SOCKET} is 'localfilesystem:/run/adb.sock', which adbutils cannot reach" in result.err
    assert "hint: unset it, or make it tcp:127.0.0.1:5037" in result.err


@pytest.mark.parametrize("host", ["", "localhost:", "127.0.0.1:"])
def test_phones_of_the_server_that_a_socket_names(
    host: str, server: AdbServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: LoopbackDevice = connect()
    monkeypatch.setenv(PORT, "1")
    monkeypatch.setenv(SOCKET, f"tcp:{host}{server.port}")
    assert device.serial in {listed.serial for listed in Server().devices()}


@pytest.mark.parametrize("host", ["localhost:", "127.0.0.1:"])
def test_a_server_is_started_where_a_socket_names_this_machine(
    host: str, server: AdbServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with AdbServer(server.adb) as own:
        for name, value in own.variables.items():
            monkeypatch.setenv(name, value)
        own.run("kill-server")
        monkeypatch.setenv(PORT, "1")
        monkeypatch.setenv(SOCKET, f"tcp:{host}{own.port}")
        capfd.readouterr()
        assert Server().version() == 41
        assert capfd.readouterr() == ("", "")


def test_a_server_elsewhere(elsewhere: str, hexgraft: Hexgraft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKET, f"tcp:{elsewhere}")
    assert Server().version() == 41
    result = hexgraft("doctor", "--backend", "device")
    assert f"adb server: version 41 at {elsewhere} ({SOCKET})" in result.out


@pytest.mark.parametrize(("name", "value"), [(SOCKET, "tcp:127.0.0.2:1"), (HOST, "127.0.0.2")])
def test_no_server_is_started_for_another_machine(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    if name == HOST:
        monkeypatch.setenv(PORT, "1")
    with pytest.raises(NoAdb, match=r"the adb server at 127\.0\.0\.2:1 does not answer") as raised:
        Server().devices()
    assert raised.value.exit_code == NO_DEVICE
    assert raised.value.hint == f"start it there (`adb -a nodaemon server`), or unset {name}"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("command", [["devices"], ["doctor", "--backend", "device"]])
@pytest.mark.parametrize("port", ["", "abc", "99999", "-5"])
@pytest.mark.parametrize("spec", [None, "tcp:127.0.0.1:5037"])
def test_a_port_that_is_none_is_told_before_adbutils_reads_it(
    command: list[str], port: str, spec: str | None
) -> None:
    """As it is imported, hence a process of its own."""
    environment = os.environ | {PORT: port} | ({SOCKET: spec} if spec else {})
    words = [sys.executable, "-m", "hexgraft.host.cli", *command]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    told = done.stdout + done.stderr
    assert "Traceback" not in told
    assert f"{PORT} is {port!r}, no port" in told
    assert "unset it, or make it 5037" in told
    assert done.returncode == (USAGE if command == ["devices"] else done.returncode) != 0
