"""A stand-in for AI Hub for every test, and the guard that nothing is sent anywhere else."""

from __future__ import annotations

import importlib.util
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import write_tiny_hf

from hexgraft.host.hub import service as service_module
from hexgraft.host.hub.service import Pace, Service

if importlib.util.find_spec("qai_hub") and importlib.util.find_spec("onnxruntime_qnn"):
    import backoff._sync
    from hub_service import HubServer
    from qai_hub.util import session as client_session
else:
    collect_ignore_glob = ["test_*.py"]

FAST = Pace((0.02, 0.05), (0.01, 0.01), 1200.0)


class Elsewhere(Exception):
    """Something wanted to leave this machine."""


def is_here(address: Any) -> bool:
    """Whether a socket address is on this machine's loopback."""
    if not isinstance(address, tuple):
        return True  # a Unix socket
    host = address[0].decode() if isinstance(address[0], bytes) else address[0]
    return host == "localhost" or ipaddress.ip_address(host).is_loopback


@pytest.fixture(autouse=True)
def nothing_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Every connection of this process must go to loopback; processes of ours find a dead proxy."""
    outward: list[str] = []
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, original: Any = original) -> Any:
            if not is_here(address):
                outward.append(str(address))
                raise Elsewhere(str(address))
            return original(self, address)

        monkeypatch.setattr(socket.socket, name, guarded)
    looked_up = socket.getaddrinfo

    def resolve(host: Any, *arguments: Any, **named: Any) -> Any:
        if not is_here((host,)):
            outward.append(str(host))
            raise Elsewhere(str(host))
        return looked_up(host, *arguments, **named)

    def resolve_words(host: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return resolve(host, *arguments, **named)
        except ValueError:  # a name, not an address
            outward.append(str(host))
            raise Elsewhere(str(host)) from None

    monkeypatch.setattr(socket, "getaddrinfo", resolve_words)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path / "nowhere.ini"))
    yield outward
    assert outward == []


@pytest.fixture(autouse=True)
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client as it is, but for the seconds it waits between its own retries."""
    monkeypatch.setattr(client_session, "MAX_WAIT", 0.01)
    monkeypatch.setattr(client_session, "BACKOFF_FACTOR", 0.001)
    monkeypatch.setattr(backoff._sync, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(service_module, "PACE", FAST)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    folder = tmp_path / "stand-in"
    folder.mkdir()
    hub = HubServer(folder)
    yield hub
    hub.close()
    assert hub.leaks == []


@pytest.fixture
def account(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """The stand-in, with a configuration file of the client that the command line finds."""
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(server.ini(tmp_path / "client.ini")))
    return server


@pytest.fixture
def service(server: HubServer) -> Service:
    return Service(server.config, FAST)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture
def export(checkpoint: Path, tmp_path: Path) -> tuple[str | Path, ...]:
    """A small export: two compile jobs and a link job."""
    place = ("export", checkpoint, "-o", tmp_path / "b", "--widths", "1,8", "--context", "64")
    return (*place, "--via", "aihub", "--soc", "SM8650")
