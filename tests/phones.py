"""Loopback phones for tests: one adb server a session for each adb there is, phones connected on demand."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import adbutils
import pytest

from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PhoneModel

BUNDLED = Path(adbutils.__file__).parent / "binaries" / "adb"
ADBS = {
    "adb of the system": shutil.which("adb"),
    "adb of adbutils": str(BUNDLED) if BUNDLED.is_file() else None,
}

Connect = Callable[..., LoopbackDevice]


@pytest.fixture(scope="session", params=list(ADBS))
def server(request: pytest.FixtureRequest) -> Iterator[AdbServer]:
    """A hermetic server of each adb; every test that uses it runs with both."""
    adb = ADBS[request.param]
    if adb is None:
        pytest.skip(f"{request.param} is not there")
    with AdbServer(adb) as server:
        yield server


@pytest.fixture(scope="session")
def one_server() -> Iterator[AdbServer]:
    """A hermetic server of the newest adb there is."""
    adb = next((path for path in reversed(ADBS.values()) if path), None)
    if adb is None:
        pytest.skip("there is no adb")
    with AdbServer(adb) as server:
        yield server


@pytest.fixture
def connect(server: AdbServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Makes phones and connects them; the environment of the test uses that server and no other."""
    for name in list(os.environ):
        if name.startswith(("ANDROID_", "ADB")) or name == "HEXGRAFT_DEVICE_ROOT":
            monkeypatch.delenv(name)
    for name, value in server.variables.items():
        if name not in ("HOME", "TMPDIR"):
            monkeypatch.setenv(name, value)
    made: list[LoopbackDevice] = []

    def make(
        model: PhoneModel | None = None,
        *,
        shell: str = "/bin/sh",
        toybox: Path | None = None,
        **faults: object,
    ) -> LoopbackDevice:
        device = LoopbackDevice(model, shell=shell, toybox=toybox)
        made.append(device)
        for name, value in faults.items():
            setattr(device.faults, name, value)
        server.connect([device.serial])
        return device

    yield make
    for device in made:
        device.close()
        server.disconnect(device.serial)


@pytest.fixture
def device(connect: Connect) -> LoopbackDevice:
    return connect()


@pytest.fixture
def phone(device: LoopbackDevice) -> Phone:
    return open_phone(device.serial)


@pytest.fixture
def android(connect: Connect) -> LoopbackDevice:
    """A phone with Android's shell and commands, where the machine has them."""
    mksh, toybox = shutil.which("mksh"), shutil.which("toybox")
    if mksh is None or toybox is None:
        pytest.skip("mksh or toybox is not installed")
    return connect(shell=mksh, toybox=Path(toybox))


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def promised() -> float:
    """Seconds to wait for what takes two at most on a machine at rest, and never comes where it fails."""
    return 30.0


def setting(device: LoopbackDevice, name: str = "stay_on_while_plugged_in") -> str:
    """A global setting of the phone."""
    file = device.sandbox.folder / "settings" / f"global.{name}"
    return file.read_text("ascii").strip() if file.is_file() else "null"
