"""Phones that lack a command that files are moved with, as Android 7 lacks sha256sum: one sentence, and no
word of a damaged file or cable."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_command import Hexgraft
from test_deploy import folder_of, piece

from hexgraft.host.adb.errors import NoDevice
from hexgraft.host.adb.needs import COMMANDS, HINT, missing_commands
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.adb.pull import Puller, run_files
from hexgraft.host.adb.push import Pusher
from hexgraft.host.adb.store import Folder
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import NO_DEVICE


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return folder_of({"weights.bin": piece(tmp_path / "weights.bin", bytes(range(256)) * 400)})


def lose(device: LoopbackDevice, *commands: str) -> None:
    for command in commands:
        (device.sandbox.folder / "bin" / command).unlink()


def test_android_has_them_all(android: LoopbackDevice) -> None:
    phone = open_phone(android.serial)
    assert missing_commands(phone) == []
    for command in COMMANDS:
        link = android.sandbox.folder / "bin" / command
        target = link.readlink()
        lose(android, command)
        assert missing_commands(phone) == [command]
        link.symlink_to(target)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("commands", "words"), [(("sha256sum",), "sha256sum"), (("flock", "tee"), "flock and no tee")]
)
def test_nothing_is_pushed_without_them(
    android: LoopbackDevice, folder: Folder, commands: tuple[str, ...], words: str, begun: bool
) -> None:
    """Nor is what an earlier push left taken away, where one was begun."""
    phone = open_phone(android.serial)
    place = android.sandbox.path(f"{phone.root}/{folder.name}")
    if begun:
        place.mkdir(parents=True)
        (place / "weights.bin.part").write_bytes(bytes(range(100)))
    lose(android, *commands)
    with pytest.raises(NoDevice) as raised:
        Pusher(phone).push(folder)
    assert raised.value.message == f"{phone.name} has no command {words}"
    assert (raised.value.hint, raised.value.exit_code) == (HINT, NO_DEVICE)
    assert [file.name for file in android.sandbox.path(phone.root).rglob("*.*")] == [
        "weights.bin.part"
    ] * begun


def test_no_record_is_fetched_without_them(android: LoopbackDevice, tmp_path: Path) -> None:
    phone = open_phone(android.serial)
    runs = android.sandbox.path(f"{phone.root}/runs")
    runs.mkdir(parents=True)
    (runs / "a.jsonl").write_bytes(b"{}\n")
    (file,) = run_files(phone)
    lose(android, "sha256sum")
    with pytest.raises(NoDevice, match="has no command sha256sum"):
        Puller(phone, tmp_path).pull(file)
    assert list(tmp_path.iterdir()) == []


def test_what_commands_say_of_it(android: LoopbackDevice, bundle: Bundle, hexgraft: Hexgraft) -> None:
    lose(android, "sha256sum")
    result = hexgraft("push", str(bundle.path))
    assert result.code == NO_DEVICE
    assert "has no command sha256sum" in result.err
    assert f"hint: {HINT}" in result.err
    found = {each["what"]: each for each in hexgraft("doctor", "--backend", "device", "--json").json}
    assert found["commands"]["state"] == "failed"
    assert found["commands"]["said"].endswith("has no command sha256sum")
    assert found["commands"]["fix"] == HINT
