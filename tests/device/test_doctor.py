"""`hexgraft doctor`: what it finds on a phone, and the fix it names."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from device_command import Hexgraft
from phones import Connect, promised, wait_until

from hexgraft.host.adb import checkup
from hexgraft.host.adb.release import Release
from hexgraft.host.adb.store import Folder, Piece
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.models.errors import CONNECTION_LOST, FAILED, NO_DEVICE, USAGE


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
    assert wait_until(lambda: device.sandbox.processes() == [], promised())


def test_doctor_finds_what_is_wrong(hexgraft: Hexgraft, connect: Connect) -> None:
    denial = (
        'avc: denied { read write } for comm="runner" name="adsprpc-smd" '
        "scontext=u:r:shell:s0 tcontext=u:object_r:vendor_qdsp_device:s0 tclass=chr_file\n"
    )
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


FASTRPC = """
#include <stdint.h>
#include <unistd.h>
struct capability { uint32_t domain, attribute, value; };
int remote_handle_control(uint32_t request, void* data, uint32_t size) {
  struct capability* asked = data;
  if (request != 2 || size != sizeof *asked || asked->domain != 3) return 1;
  if (asked->attribute == 1) { asked->value = ALLOWED; return CODE; }
  if (asked->attribute == 6) { asked->value = 0x8875; return CODE; }
  return 1;
}
"""


def put_fastrpc(device: LoopbackDevice, folder: Path, *, allowed: int = 1, code: int | str = 0) -> None:
    """A library of the phone's maker that answers as FastRPC does."""
    source = folder / "fastrpc.c"
    source.write_text(FASTRPC.replace("ALLOWED", str(allowed)).replace("CODE", str(code)))
    library = device.sandbox.path("/vendor/lib64/libcdsprpc.so")
    library.unlink(missing_ok=True)
    words = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(words, check=True, capture_output=True)


def test_doctor_asks_for_unsigned_code(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, tmp_path: Path
) -> None:
    def found() -> dict[str, tuple[str, str]]:
        listed = hexgraft("doctor", "--backend", "device", "--json").json
        return {each["what"]: (each["state"], each["said"]) for each in listed}

    state, said = found()["unsigned PD"]
    assert state == "unknown"
    assert "the runner that asks is not on the phone" in said
    hexgraft("push", str(bundle.path))
    state, said = found()["unsigned PD"]  # the loopback phone's library is an empty file
    assert state == "unknown"
    assert "could not check: " in said
    assert "libcdsprpc.so" in said
    put_fastrpc(device, tmp_path)
    assert found()["unsigned PD"] == ("ok", "allowed")
    put_fastrpc(device, tmp_path, allowed=0)
    assert found()["unsigned PD"] == ("warning", "the phone's NPU takes signed code only")
    put_fastrpc(device, tmp_path, code=20)
    assert found()["unsigned PD"] == ("unknown", "could not check: FastRPC answers with error 20")


def test_doctor_of_a_phone_whose_fastrpc_hangs(
    hexgraft: Hexgraft,
    bundle: Bundle,
    device: LoopbackDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not taken for a lost link, and nothing stays behind on the phone."""
    monkeypatch.setattr(checkup, "_PROBE_SECONDS", 2.0)
    hexgraft("push", str(bundle.path))
    put_fastrpc(device, tmp_path, code="sleep(100)")
    result = hexgraft("doctor", "--backend", "device", "--json")
    assert result.code == 0
    found = {each["what"]: each for each in result.json}
    assert found["unsigned PD"]["state"] == "unknown"
    assert found["unsigned PD"]["said"] == "could not check: FastRPC has not answered for 2 s"
    assert wait_until(lambda: device.sandbox.processes() == [], promised())


def test_doctor_looks_for_the_skel(binary: Path, tmp_path: Path) -> None:
    def release(*names: str) -> Release:
        pieces = {name: Piece(tmp_path, 1, "") for name in names}
        return Release("android-arm64", Folder("runners", "0" * 64, pieces), True)

    def state(release: Release, arch: int | None) -> tuple[str, str]:
        (finding,) = checkup._skel(release, arch)
        return finding.state, finding.said

    whole = release("libQnnHtpV75Skel.so", "libQnnHtpV75Stub.so")
    assert state(whole, 75) == ("ok", "libQnnHtpV75Skel.so is on the phone")
    assert state(whole, 79)[0] == "warning"
    assert state(whole, None)[0] == "unknown"


def test_doctor_does_not_take_an_unreadable_log_for_a_clean_one(hexgraft: Hexgraft, connect: Connect) -> None:
    connect(replace(PHONES["s24-ultra"], logcat=""))
    found = {each["what"]: each for each in hexgraft("doctor", "--backend", "device", "--json").json}
    assert found["SELinux"]["state"] == "unknown"
    assert "could not check" in found["SELinux"]["said"]


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


def test_doctor_of_a_phone_that_goes_away(hexgraft: Hexgraft, device: LoopbackDevice) -> None:
    """What was found before stands, in JSON too."""
    device.link.cut_after(1_000)
    result = hexgraft("doctor", "--backend", "device", "--json")
    assert result.code == CONNECTION_LOST
    found = result.json
    assert found[-1]["what"] == "phone"
    assert found[-1]["state"] == "failed"
    assert "connection to" in found[-1]["said"]
    assert found[-1]["fix"]
    assert "adb server" in {each["what"] for each in found}


@pytest.mark.parametrize("option", ["--serial", "--root"])
def test_doctor_has_no_use_for_a_phone_without_one(hexgraft: Hexgraft, option: str) -> None:
    result = hexgraft("doctor", option, "/data/x")
    assert result.code == USAGE
    assert f"--backend cpu has no use for {option}" in result.err
