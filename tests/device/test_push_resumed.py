"""Pushes that are broken off or altered on the way: they go on where they were, and what arrives is right."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from phones import wait_until
from pushed import SIZE, folder_of, mixed_folder, on_phone, ours, piece

from hexgraft.host.adb.errors import ConnectionLost, TransferFailed
from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.push import Pusher
from hexgraft.host.adb.store import Folder, Store
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.transport import MAX_PAYLOAD
from hexgraft.models.errors import CONNECTION_LOST


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return mixed_folder(tmp_path)


def names(device: LoopbackDevice) -> list[str]:
    """What the phone's processes are called."""
    found = []
    for pid in device.sandbox.processes():
        with suppress(OSError):  # gone meanwhile
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def test_lost_links_are_survived(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    before = device.link.received
    device.faults.drops.extend([1_500_000, 1_000_000, 2_000_000])
    pushed = Pusher(phone).push(folder)
    assert pushed.lost == 3
    assert on_phone(device, phone, folder) == ours(folder)
    # What was on its way when the link went: a few of adb's messages a drop.
    assert device.link.received - before < SIZE + 3 * 4_000_000


def test_a_broken_push_goes_on_in_the_next_command(
    phone: Phone, device: LoopbackDevice, folder: Folder
) -> None:
    device.faults.drops.append(4_000_000)
    with pytest.raises(ConnectionLost) as raised:
        Pusher(phone, retries=0).push(folder)
    assert raised.value.exit_code == CONNECTION_LOST
    phone.wait(30)
    arrived = Store(phone).sizes(folder)["weights.bin.part"]
    assert 0 < arrived < SIZE
    pushed = Pusher(phone).push(folder)
    assert pushed.sent == folder.size - arrived
    assert on_phone(device, phone, folder) == ours(folder)


def test_an_unfinished_file_of_other_content_is_not_continued(
    phone: Phone, device: LoopbackDevice, folder: Folder
) -> None:
    place = device.sandbox.path(Store(phone).path(folder, "weights.bin.part"))
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x" * 1000)
    assert Pusher(phone).push(folder).sent == folder.size
    assert on_phone(device, phone, folder) == ours(folder)


def test_a_writer_left_behind_is_ended(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    """What the phone had received but not written when the link went must not be appended later."""
    place = Store(phone).path(folder)
    phone.run(f"mkdir -p {place}; printf x > {place}/weights.bin.part; mkfifo {phone.root}/input")
    phone.run(
        f"cd {place}; setsid sh -c 'echo $$ > weights.bin.part.pid; exec tee -a weights.bin.part' "
        f"<> {phone.root}/input > /dev/null 2>&1 &"
    )
    assert wait_until(lambda: names(device) == ["tee"])
    Pusher(phone).push(folder)
    assert device.sandbox.processes() == []
    assert on_phone(device, phone, folder) == ours(folder)


def test_a_byte_flipped_on_the_way_is_sent_again(
    phone: Phone, device: LoopbackDevice, folder: Folder
) -> None:
    device.faults.corrupt = 3_000_000
    assert Pusher(phone).push(folder).sent == folder.size + SIZE
    assert on_phone(device, phone, folder) == ours(folder)


def test_a_link_that_alters_a_file_every_time(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    def spoil(name: str, done: int, total: int) -> None:
        if done == 0:
            device.faults.corrupt = 3_000_000

    with pytest.raises(TransferFailed, match=r"weights\.bin arrived altered .* twice") as raised:
        Pusher(phone, spoil).push(folder)
    assert raised.value.hint == "try another cable or port"
    assert "weights.bin" not in Store(phone).sizes(folder)


def test_a_reboot_in_the_middle(phone: Phone, device: LoopbackDevice, folder: Folder) -> None:
    rebooted = False

    def reboot(name: str, done: int, total: int) -> None:
        nonlocal rebooted
        if name == "weights.bin" and done > 3_000_000 and not rebooted:
            rebooted = True
            device.reboot()

    pushed = Pusher(phone, reboot).push(folder)
    assert pushed.lost >= 1
    assert on_phone(device, phone, folder) == ours(folder)


def test_the_adb_server_killed_in_the_middle(
    server: AdbServer, phone: Phone, device: LoopbackDevice, folder: Folder
) -> None:
    killed = False

    def kill(name: str, done: int, total: int) -> None:
        nonlocal killed
        if name == "weights.bin" and done > 3_000_000 and not killed:
            killed = True
            server.run("kill-server")
            server.run("start-server")
            server.connect([device.serial])

    assert Pusher(phone, kill).push(folder).lost >= 1
    assert on_phone(device, phone, folder) == ours(folder)


@pytest.mark.slow
def test_fifty_drops_in_one_push(phone: Phone, device: LoopbackDevice, tmp_path: Path) -> None:
    """300 MB with the link cut fifty times at random: the file is right, and little was sent twice.

    A cut destroys the message it falls into, of up to 1 MiB whatever the pusher does: half of that on
    average, 26 MB of 300 in fifty cuts. Beyond those nothing that had arrived is sent again.
    """
    size = 300_000_000
    pieces = {"big": piece(tmp_path / "big", random.Random(1).randbytes(size // 10) * 10)}
    folder = folder_of(pieces)
    generator = random.Random(2)
    device.faults.drops.extend(generator.randint(500_000, 10_000_000) for _ in range(50))
    before = device.link.received
    pushed = Pusher(phone).push(folder)
    assert pushed.lost >= 50
    assert not device.faults.drops
    assert on_phone(device, phone, folder) == ours(folder)
    twice = device.link.received - before - size
    assert device.link.cut_off <= 50 * MAX_PAYLOAD
    assert twice - device.link.cut_off <= 0.005 * size
