"""`hexgraft bench` on a phone: what it notes of it, how it waits for a warm one, what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_command import Hexgraft
from phones import Connect, setting, wait_until

from hexgraft.host.adb.facts import Zone, gather
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PhoneModel
from hexgraft.host.measure.bench import PhoneWatch, cool_down

SHORT = ("--repeats", "2", "--fills", "16", "--max-tokens", "8")


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    return one_server


def test_a_phone_s_state_is_part_of_the_profile(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    result = hexgraft("bench", str(bundle.path), "--backend", "device", *SHORT, "--json")
    assert result.code == 0, result.err
    profile = result.json
    assert profile["source"]["kind"] == "measured on a phone"
    assert profile["backend"] == "device"
    assert profile["machine"]["name"] == "samsung SM-S928B"
    assert profile["machine"]["identity"] == device.serial
    assert "Snapdragon 8 Gen 3" in profile["machine"]["chip"]
    assert "onnxruntime" in profile["machine"]["runtime"]
    for when in ("before", "after"):
        state = profile[when]
        assert state["temperatures"]["cpu-0-0-0"] == pytest.approx(36.1)
        assert state["frequencies"]["cpu7"] == 3302400 // 2
        assert (state["battery"], state["plugged"], state["awake"]) == (82, True, True)
    assert profile["endurance"]["tokens"] == 8
    assert wait_until(lambda: setting(device) == "0")


def test_the_words_of_it(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    result = hexgraft("bench", str(bundle.path), "--backend", "device", *SHORT)
    assert result.code == 0, result.err
    for words in ("before: 36 °C (cpu-0-0-0)", "battery 82 %, charging, screen on", "tokens/s at first"):
        assert words in result.out


def test_a_warm_phone_is_waited_for_but_not_for_ever(
    hexgraft: Hexgraft, bundle: Bundle, connect: Connect
) -> None:
    connect(PhoneModel(temperatures={"cpu-0-0-0": 71.0}))
    result = hexgraft(
        "bench", str(bundle.path), "--backend", "device", *SHORT, "--cool-timeout", "0.2", "--json"
    )
    assert result.code == 0, result.err
    assert "cpu-0-0-0 is at 71 °C" in result.err
    assert "measuring all the same" in result.err
    assert result.json["cooling"] >= 0.2


def test_it_begins_as_soon_as_the_phone_is_cool(device: LoopbackDevice) -> None:
    facts = gather(open_phone(device.serial))
    degrees = iter([60.0, 50.0, 44.0])
    waits: list[float] = []
    said: list[str] = []

    def ask():  # type: ignore[no-untyped-def]
        from msgspec.structs import replace

        return replace(facts, zones=[Zone("skin", next(degrees))])

    cool_down(PhoneWatch(ask, lambda facts: None, 45.0, 100.0, said.append, waits.append))
    assert len(waits) == 2
    assert said == ["skin is at 60 °C, waiting for 45 °C", "skin is at 50 °C, waiting for 45 °C"]
    assert next(degrees, None) is None


def test_a_phone_is_tuned_for_itself(
    hexgraft: Hexgraft,
    bundle: Bundle,
    device: LoopbackDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEXGRAFT_STATE", str(tmp_path / "state"))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the sky is blue\n", encoding="utf-8")
    words = ("--prompts", str(prompts), "--max-tokens", "8", "--drafters", "lookup", "--repeats", "1")
    result = hexgraft("tune", str(bundle.path), "--backend", "device", *words, "--json")
    assert result.code == 0, result.err
    assert result.json["file"] is not None
    prompt = ("-p", "the sky", "--raw", "--max-tokens", "4")
    assert "tuned: " in hexgraft("run", str(bundle.path), *prompt, "--backend", "device").err
    assert "tuned: " not in hexgraft("run", str(bundle.path), *prompt).err
