"""Pushes that meet one another, a `clean`, or a link that breaks without end."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from device_command import Hexgraft
from phones import wait_until
from pushed import SIZE, folder_of, on_phone, ours, piece

from hexgraft.host.adb.claim import Claim
from hexgraft.host.adb.errors import Busy, ConnectionLost
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.adb.push import Pusher
from hexgraft.host.adb.store import Folder, Store
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import FAILED


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    data = random.Random(5).randbytes(SIZE)
    return folder_of({"weights.bin": piece(tmp_path / "weights.bin", data)})


def test_two_pushes_at_once(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    """One waits for the other, and finds everything there."""
    device.faults.rate = 4e6
    pushers = [Pusher(phone), Pusher(open_phone(device.serial))]
    failed: list[Exception] = []

    def push(pusher: Pusher) -> None:
        try:
            pusher.push(folder)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=push, args=(pusher,)) for pusher in pushers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(pusher.pushed.sent for pusher in pushers) == [0, SIZE]
    assert on_phone(device, phone, folder) == ours(folder)
    assert Store(phone).is_whole(folder)


def test_a_push_that_takes_long_is_not_disturbed(
    phone: Phone, device: LoopbackDevice, folder: Folder, hexgraft: Hexgraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Claim.__init__, "__defaults__", (0.3,))
    met: list[str] = []

    def meet(name: str, done: int, total: int) -> None:
        if done > SIZE // 2 and not met:
            with pytest.raises(Busy) as raised:
                Pusher(open_phone(device.serial)).push(folder)
            met.append(raised.value.message)
            result = hexgraft("clean")
            assert result.code == FAILED
            met.append(result.err)

    pushed = Pusher(phone, meet).push(folder)
    assert (pushed.sent, pushed.lost) == (SIZE, 0)
    words = f"another command is changing files on SM S928B ({device.serial}): process "
    assert all(words in said for said in met)
    assert len(met) == 2
    assert on_phone(device, phone, folder) == ours(folder)


def test_a_holder_that_a_lost_link_left_does_not_count(phone: Phone, device: LoopbackDevice) -> None:
    """The phone may notice a lost link later than we do: its shell then has the lock still."""
    claim = Claim(phone, 0.3)
    with claim.hold(), claim.hold(), pytest.raises(Busy), Claim(phone, 0.3).hold():
        pass
    assert wait_until(lambda: device.sandbox.processes() == [])
    with Claim(phone, 0.3).hold():
        pass


def test_a_link_that_carries_nothing_ends_the_push(
    phone: Phone, device: LoopbackDevice, folder: Folder
) -> None:
    """A bad cable: short commands pass, the first block of a file breaks the link. Nothing of it arrives."""
    device.faults.drops.extend([60_000] * 8)
    pusher = Pusher(phone)
    with pytest.raises(ConnectionLost):
        pusher.push(folder)
    assert pusher.pushed.lost == 3
    device.faults.drops.clear()


def test_android_s_own_shell_locks_too(android: LoopbackDevice) -> None:
    phone = open_phone(android.serial)
    with Claim(phone).hold(), pytest.raises(Busy), Claim(phone, 0.3).hold():
        pass
    assert wait_until(lambda: android.sandbox.processes() == [])


def test_what_a_push_leaves_is_cleaned(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    assert hexgraft("push", str(bundle.path)).code == 0
    assert hexgraft("clean").code == 0
    assert not device.sandbox.path("/data/local/tmp/hexgraft").exists()
