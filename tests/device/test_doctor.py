"""`hexgraft doctor`: what it finds on a phone, and the fix it names."""

from __future__ import annotations

import sys

import pytest
from device_command import Hexgraft
from phones import Connect, wait_until

from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.models.errors import FAILED, NO_DEVICE


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


def test_doctor(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    result = hexgraft("doctor", "--backend", "device")
    assert result.code == 0
    assert "ok       chip: SM8650 (Snapdragon 8 Gen 3, V75)" in result.out
    assert "ok       FastRPC: /dev/fastrpc-cdsp" in result.out
    assert "warning  runner: not on the phone yet\n         fix: hexgraft push BUNDLE" in result.out
    hexgraft("push", str(bundle.path))
    found = {each["what"]: each for each in hexgraft("doctor", "--backend", "device", "--json").json}
    assert found["runner"]["state"] == "ok"
    assert "runs on: cpu" in found["runner"]["said"]
    assert wait_until(lambda: device.sandbox.processes() == [], 2)


def test_doctor_finds_what_is_wrong(hexgraft: Hexgraft, connect: Connect) -> None:
    denial = (
        'avc: denied { read write } for comm="runner" name="adsprpc-smd" '
        "scontext=u:r:shell:s0 tcontext=u:object_r:vendor_qdsp_device:s0 tclass=chr_file\n"
    )
    from dataclasses import replace

    model = replace(PHONES["no-npu"], battery=7, awake=False, temperatures={"skin": 51.0}, logcat=denial)
    device = connect(model)
    device.set_noexec(True)
    device.set_space(500_000_000)
    result = hexgraft("doctor", "--backend", "device", "--json")
    assert result.code == FAILED
    found = {each["what"]: (each["state"], each["said"]) for each in result.json}
    assert found["chip"] == ("warning", "Tensor G3 is not in the table of Hexagon NPUs")
    assert found["FastRPC"] == ("warning", "no device node to reach an NPU by")
    assert found["SELinux"] == ("warning", "denied `read write` on adsprpc-smd")
    assert found["folder"][0] == "failed"
    assert "nothing can be run from /data/local/tmp/hexgraft" in found["folder"][1]
    assert found["temperature"] == ("warning", "warmest zone skin at 51.0 °C")
    assert found["battery"] == ("warning", "7 %, plugged in")
    assert found["screen"] == ("warning", "off")
    assert found["space"][0] == "warning"
    assert all(each["fix"] for each in result.json if each["state"] != "ok")


def test_doctor_without_a_phone(
    hexgraft: Hexgraft, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hexgraft("doctor").code == 0
    result = hexgraft("doctor", "--backend", "device")
    assert result.code == NO_DEVICE
    assert "failed   phone: adb sees no phone" in result.out
    monkeypatch.setitem(sys.modules, "adbutils", None)
    result = hexgraft("doctor", "--backend", "device")
    assert result.code == FAILED
    assert "failed   adb: adbutils is not installed" in result.out
    assert 'fix: install what phones need: pip install "hexgraft[device]"' in result.out
