"""`hexgraft run` on a phone whose link breaks: the text that is kept, and going on with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from device_command import Hexgraft, run_words
from phones import setting, wait_until

from hexgraft.host.adb.phone import open_phone
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.models.errors import CONNECTION_LOST, USAGE


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


def test_a_lost_link_keeps_the_text(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    hexgraft("push", str(bundle.path))
    words = ["run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "300", "--plain", "--json"]
    whole = hexgraft(*words)
    device.link.cut_after(40_000)
    result = hexgraft(*words, "--backend", "device")
    assert result.code == CONNECTION_LOST
    assert "error: the connection to SM S928B" in result.err
    kept = result.json
    assert kept["finish"] == "lost"
    assert 0 < len(kept["tokens"]) < 300
    assert kept["tokens"] == whole.json["tokens"][: len(kept["tokens"])]
    assert whole.json["text"].startswith(kept["text"].rstrip("\ufffd"))
    assert wait_until(lambda: device.sandbox.processes() == [], 2)
    assert setting(device) == "0"
    open_phone(device.serial).wait(30)
    assert hexgraft(*words, "--backend", "device").json["tokens"] == whole.json["tokens"]


@pytest.mark.parametrize("draft", ["none", "lookup", "levels"])
def test_reconnecting_goes_on_where_the_text_stands(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, draft: str
) -> None:
    hexgraft("push", str(bundle.path))
    words = ["run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "300", "--draft", draft, "--json"]
    words += ["--temperature", "0.7", "--frequency-penalty", "0.2"]
    whole = hexgraft(*words)
    device.link.cut_after(40_000, 45_000)
    result = hexgraft(*words, "--backend", "device", "--reconnect", "30")
    assert result.code == 0, result.err
    assert result.err.count("waiting up to 30 s for the phone") == 2
    assert result.json["tokens"] == whole.json["tokens"]
    assert result.json["text"] == whole.json["text"]


def test_reconnecting_to_a_phone_that_stays_away(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    hexgraft("push", str(bundle.path))
    device.link.cut_after(40_000)
    device.faults.refuse = True
    words = ["run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "300", "--plain", "--json"]
    result = hexgraft(*words, "--backend", "device", "--reconnect", "1")
    assert result.code == CONNECTION_LOST
    assert "it did not come back" in result.err
    assert result.json["tokens"]


def test_reconnect_and_trace_exclude_each_other(hexgraft: Hexgraft, bundle: Bundle, tmp_path: Path) -> None:
    result = hexgraft(*run_words(bundle, "abc", "--reconnect", "5", "--trace", str(tmp_path / "t")))
    assert result.code == USAGE
    assert "--trace cannot record a run that --reconnect mends" in result.err
