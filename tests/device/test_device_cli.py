"""The commands that look at a phone and put files there: words, JSON, exit codes."""

from __future__ import annotations

from typing import Any

import pytest
from device_command import Hexgraft, run_words
from phones import Connect, setting

from hexgraft.host.adb.errors import ConnectionLost
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.adb.server import Listed, Server
from hexgraft.host.adb.session import close_places
from hexgraft.host.adb.shell import Completed
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import FAILED, NO_DEVICE, USAGE


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


def test_devices(hexgraft: Hexgraft, connect: Connect) -> None:
    device = connect()
    result = hexgraft("devices")
    assert result.code == 0
    for word in (device.serial, "SM-S928B", "SM8650", "14", "6.4 GB", "36 °C"):
        assert word in result.out
    (entry,) = hexgraft("devices", "--json").json
    assert entry["serial"] == device.serial
    assert entry["chip"] == "SM8650 (Snapdragon 8 Gen 3, V75)"
    assert entry["facts"]["memory_free"] == 6100 << 20


def test_devices_that_are_not_ready(hexgraft: Hexgraft, connect: Connect) -> None:
    device = connect(refuse=True)
    result = hexgraft("devices")
    assert result.code == NO_DEVICE
    assert f"{device.serial} is unauthorized: unlock it and accept the prompt" in result.err
    assert "no phone can be used" in result.err


def test_no_devices(hexgraft: Hexgraft, connect: Connect) -> None:
    result = hexgraft("devices")
    assert result.code == NO_DEVICE
    assert "error: adb sees no phone" in result.err
    assert "without a phone: hexgraft device loopback" in result.err
    assert hexgraft("devices", "--json").json == []


def test_devices_of_a_serial_that_is_not_there(
    hexgraft: Hexgraft, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one in the environment that is unplugged: what there is is told."""
    device = connect()
    monkeypatch.setenv("ANDROID_SERIAL", "R58M12")
    result = hexgraft("devices")
    assert result.code == NO_DEVICE
    assert "error: there is no phone with the serial R58M12" in result.err
    assert f"hint: use one of these: --serial {device.serial}" in result.err
    (listed,) = Server().devices()
    assert device.serial in hexgraft("devices", "-s", str(listed.transport_id)).out
    assert hexgraft("devices", "--root", "/sdcard/x").code == USAGE


def test_a_phone_that_goes_away_while_it_is_listed(
    hexgraft: Hexgraft, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, old, here = connect(), connect(no_shell_v2=True), connect()
    features, ask = Server.features, Phone.run

    def unplugged(self: Server, listed: Listed) -> set[str]:
        if listed.serial == gone.serial:
            raise ConnectionLost("the adb server says: device offline", "run the command again")
        return features(self, listed)

    monkeypatch.setattr(Server, "features", unplugged)
    result = hexgraft("devices")
    assert result.code == 0
    assert "SM8650" in result.out
    assert f"{gone.serial} does not answer: the adb server says: device offline" in result.err
    assert f"{old.serial} has an Android older than 7: use a phone with" in result.err
    entries = {each["serial"]: each for each in hexgraft("devices", "--json").json}
    assert entries[here.serial]["problem"] is None
    assert "does not answer" in entries[gone.serial]["problem"]
    monkeypatch.setattr(Server, "features", features)

    def silent(self: Phone, *args: Any, **kwargs: Any) -> Completed:
        raise ConnectionLost("the phone did not answer within 30 s", "check the cable")

    monkeypatch.setattr(Phone, "run", silent)
    result = hexgraft("devices", "-s", here.serial)
    assert result.code == NO_DEVICE
    assert "does not answer" in result.out
    assert "older than 7" not in result.out
    monkeypatch.setattr(Phone, "run", ask)


def test_push_twice_and_clean(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    first = hexgraft("push", str(bundle.path))
    assert first.code == 0
    path = f"/data/local/tmp/hexgraft/bundles/{bundle.digest[:16]}"
    assert first.out == path + "\n"
    assert f"pushed {len(bundle.manifest.files) + 3} files" in first.err
    before = device.link.received
    second = hexgraft("push", str(bundle.path), "--json")
    assert device.link.received - before < 10_000
    assert second.json | {"seconds": 0} == {
        "path": path, "serial": device.serial, "files": 0, "sent": 0, "seconds": 0, "links_lost": 0,
    }  # fmt: skip
    dry = hexgraft("clean", "--dry-run")
    assert "would free" in dry.err
    assert "in 2 folders" in dry.err
    kept = hexgraft("clean", "--keep", str(bundle.path), "--json")
    assert kept.json["folders"] == []
    cleaned = hexgraft("clean")
    assert "freed" in cleaned.err
    assert not device.sandbox.path("/data/local/tmp/hexgraft").exists()
    assert "nothing of ours is on" in hexgraft("clean").err


def test_every_command_takes_another_folder(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    assert hexgraft("push", str(bundle.path), "--root", "/sdcard/x").code == USAGE
    root = ("--root", "/data/local/tmp/my own")
    assert hexgraft("push", str(bundle.path), *root).code == 0
    assert device.sandbox.path("/data/local/tmp/my own/runners").is_dir()
    words = [*run_words(bundle, "abc"), "--backend", "device"]
    assert hexgraft(*words, *root).json["tokens"] == hexgraft(*run_words(bundle, "abc")).json["tokens"]
    found = {each["what"]: each for each in hexgraft("doctor", "--backend", "device", "--json", *root).json}
    assert found["folder"]["said"] == "/data/local/tmp/my own can be written and run from"
    assert found["runner"]["state"] == "ok"
    assert not device.sandbox.path("/data/local/tmp/hexgraft").exists()
    assert "freed" in hexgraft("clean", *root).err
    assert not device.sandbox.path("/data/local/tmp/my own").exists()


def test_a_build_for_the_npu_is_not_chosen_on_the_cpu(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    for words in (run_words(bundle, "abc", "--backend", "device"), ["push", str(bundle.path)]):
        result = hexgraft(*words, "--soc", "SM8650")
        assert result.code == USAGE
        assert "--soc chooses a build for the NPU" in result.err
        assert "--provider htp" in result.err
    assert "unknown SoC 'SM1'" in hexgraft(*run_words(bundle, "abc", "--soc", "SM1")).err
    result = hexgraft(*run_words(bundle, "abc", "--precision", "w8a16"))
    assert "--precision chooses a build for the NPU" in result.err


def test_push_to_a_full_phone(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    device.set_space(100_000)
    result = hexgraft("push", str(bundle.path))
    assert result.code == FAILED
    assert "and a tenth more are needed" in result.err
    assert "hint: delete something on the phone" in result.err
    device.set_space(None)
    assert hexgraft("push", str(bundle.path)).code == 0


def test_push_to_a_full_phone_below_a_folder_with_spaces(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    device.set_space(100_000)
    for _ in range(2):  # before the folder is there, and after
        result = hexgraft("push", str(bundle.path), "--root", "/data/local/tmp/my own")
        assert result.code == FAILED
        assert "0.1 MB free in /data/local/tmp/my own" in result.err
        device.sandbox.path("/data/local/tmp/my own").mkdir(exist_ok=True)


def test_push_over_a_link_that_breaks(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    device.faults.drops.extend([5_000_000, 9_000_000])
    result = hexgraft("push", str(bundle.path))
    assert result.code == 0
    assert "link lost 2 times" in result.err


def test_push_to_no_phone(hexgraft: Hexgraft, bundle: Bundle, connect: Connect) -> None:
    result = hexgraft("push", str(bundle.path))
    assert result.code == NO_DEVICE
    assert "error: adb sees no phone" in result.err
    old = connect(no_shell_v2=True)
    result = hexgraft("push", str(bundle.path), "-s", old.serial)
    assert result.code == NO_DEVICE
    assert "its Android is older than 7" in result.err


def test_clean_puts_the_setting_of_the_screen_back(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    """A phone that went down in a run has noted the user's value, and nobody restored it."""
    from hexgraft.host.adb.session import open_device_session

    open_device_session(bundle, "target")
    device.reboot()
    close_places()
    open_phone(device.serial).wait(30)
    assert setting(device) == "7"
    command = device.sandbox.folder / "bin" / "settings"
    working = command.rename(command.with_suffix(".kept"))
    assert "warning: restoring its settings failed" in hexgraft("clean").err
    assert device.sandbox.path("/data/local/tmp/hexgraft/stay-awake.saved").exists()
    working.rename(command)
    assert hexgraft("clean").code == 0
    assert setting(device) == "0"
    assert not device.sandbox.path("/data/local/tmp/hexgraft").exists()


def test_clean_while_a_run_goes_on(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    from hexgraft.host.adb.session import open_device_session

    session = open_device_session(bundle, "target")
    result = hexgraft("clean")
    assert result.code == FAILED
    assert (
        f"a run is going on on SM S928B ({device.serial}): process {session.connection.hello.pid}"
        in result.err
    )
