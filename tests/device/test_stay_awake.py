"""The setting that keeps a phone awake while a runner is there: made, and put back whatever happens."""

from __future__ import annotations

import pytest
from decoding import decode, tokens
from phones import promised, setting, wait_until

from hexgraft.host.adb.errors import Busy, ConnectionLost
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.adb.session import DeviceOptions, DevicePlace, open_device_session
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.runner.wire import RunnerLost

pytestmark = pytest.mark.usefixtures("built_runner")


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


def test_the_screen_stays_on_and_the_setting_comes_back(bundle: Bundle, device: LoopbackDevice) -> None:
    before = setting(device)
    session = open_device_session(bundle, "target")
    assert setting(device) == "7"
    session.close()
    assert wait_until(lambda: setting(device) == before, promised())
    session = open_device_session(bundle, "target", DeviceOptions(stay_awake=False))
    assert setting(device) == before
    session.close()


def test_a_setting_that_was_never_made_is_deleted_again(bundle: Bundle, device: LoopbackDevice) -> None:
    file = device.sandbox.folder / "settings" / "global.stay_on_while_plugged_in"
    file.unlink()
    session = open_device_session(bundle, "target")
    assert setting(device) == "7"
    session.close()
    assert wait_until(lambda: not file.exists(), promised())


def test_a_value_saved_by_a_run_that_died_is_the_one_restored(bundle: Bundle, device: LoopbackDevice) -> None:
    """The watcher of a run may be killed too (by a reboot): the next run must not take 7 for the user's."""
    session = open_device_session(bundle, "target")
    device.reboot()
    assert setting(device) == "7"
    with pytest.raises((ConnectionLost, RunnerLost)):
        decode(bundle, session)
    phone = open_phone()
    phone.wait(30)
    open_device_session(bundle, "target").close()
    assert wait_until(lambda: setting(device) == "0", promised())


def no_settings(device: LoopbackDevice, on: bool, stream: int = 2) -> None:
    """As while Android starts or goes down: the command is there, what it asks is not."""
    command = device.sandbox.folder / "bin" / "settings"
    working = command.with_suffix(".kept")
    if on:
        command.rename(working)
        command.write_text(f'#!/bin/sh\necho "cmd: Can\'t find service: settings" >&{stream}\nexit 20\n')
        command.chmod(0o755)
    else:
        working.replace(command)


@pytest.mark.parametrize("stream", [1, 2])
def test_a_setting_that_cannot_be_asked_for_is_left_alone(
    bundle: Bundle, device: LoopbackDevice, stream: int
) -> None:
    device.sandbox.path("/settings/global.stay_on_while_plugged_in").write_text("3\n")
    DevicePlace(bundle, DeviceOptions()).push()
    no_settings(device, True, stream)
    session = open_device_session(bundle, "target")
    no_settings(device, False)
    assert tokens(decode(bundle, session)) == tokens(decode(bundle, CpuSession(bundle)))
    session.close()
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    assert setting(device) == "3"


def test_a_setting_that_cannot_be_restored_is_restored_later(bundle: Bundle, device: LoopbackDevice) -> None:
    """Android is down already when the runner ends."""
    session = open_device_session(bundle, "target")
    no_settings(device, True)
    session.close()
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    no_settings(device, False)
    assert setting(device) == "7"
    open_device_session(bundle, "target").close()
    assert wait_until(lambda: setting(device) == "0", promised())


def test_settings_that_are_not_restored_in_time(
    bundle: Bundle, device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexgraft.host.adb.device_runner._RESTORING", 2)
    phone = open_phone()
    phone.run(
        f"mkdir -p {phone.root}; cd {phone.root}; flock alive.lock -c 'setsid sleep 68' > /dev/null 2>&1 &"
    )
    held = f"cd {phone.root}; ! flock -n alive.lock true"
    assert wait_until(lambda: phone.run(held).code == 0)
    with pytest.raises(Busy, match="is still restoring its settings"):
        open_device_session(bundle, "target")
