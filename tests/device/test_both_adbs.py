"""The whole way with each version of adb there is: push, run, lose the link, run again."""

from __future__ import annotations

import pytest
from phones import promised, setting, wait_until

from hexgraft.host.adb.errors import Busy, ConnectionLost
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.adb.session import DeviceOptions, DevicePlace, close_places, open_device_session
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.session import Session, causal


def logits(session: Session) -> list[float]:
    rows = session.forward([40, 51, 7], [0, 1, 2], causal(0, 3))
    return [float(value) for value in rows.logits(2)]


@pytest.mark.usefixtures("built_runner")
def test_push_run_lose_and_run(bundle: Bundle, device: LoopbackDevice) -> None:
    session = open_device_session(bundle, "target")
    expected = logits(CpuSession(bundle))
    assert logits(session) == pytest.approx(expected, abs=1e-5)
    place = DevicePlace(bundle, DeviceOptions())
    with pytest.raises(Busy):
        _ = place.runner
    device.drop()
    with pytest.raises(ConnectionLost):
        logits(session)
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    assert setting(device) == "0"
    open_phone().wait(30)
    assert logits(open_device_session(bundle, "target")) == pytest.approx(expected, abs=1e-5)
    close_places()
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
