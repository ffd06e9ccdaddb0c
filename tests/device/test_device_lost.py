"""`hexgraft run` on a phone whose link breaks: the text that is kept, and going on with it."""

from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from device_command import Hexgraft, run_words
from heads import write_head
from phones import Connect, promised, setting, wait_until
from tiny import write_tiny_hf

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.adb.device_runner import DeviceRunner
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli import recovery
from hexgraft.host.decode import Decoder
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.host.runner.wire import RunnerLost
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import CONNECTION_LOST
from hexgraft.models.head_checkpoint import open_draft


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


def test_a_lost_link_keeps_the_text(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    hexgraft("push", str(bundle.path))
    words = run_words(bundle, "abc", "--plain", tokens=300)
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
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    assert setting(device) == "0"
    open_phone(device.serial).wait(30)
    assert hexgraft(*words, "--backend", "device").json["tokens"] == whole.json["tokens"]


def test_a_lost_link_ends_a_conversation_in_a_script(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    hexgraft("push", str(bundle.path))
    words = ["chat", str(bundle.path), "--max-tokens", "300", "--plain"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\n")))
    whole = hexgraft(*words)
    device.link.cut_after(40_000)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\n")))
    result = hexgraft(*words, "--backend", "device")
    assert result.code == CONNECTION_LOST
    assert "error: the connection to SM S928B" in result.err
    assert 1 < len(result.out) < len(whole.out)
    assert whole.out.startswith(result.out.rstrip("\n\ufffd"))


def caches(device: LoopbackDevice) -> Path:
    return device.sandbox.path("/data/local/tmp/hexgraft/caches")


@pytest.mark.parametrize("draft", ["none", "lookup", "levels"])
def test_reconnecting_goes_on_where_the_text_stands(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, tmp_path: Path, draft: str
) -> None:
    hexgraft("push", str(bundle.path))
    words = run_words(bundle, "abc", "--draft", draft, tokens=300)
    words += ["--temperature", "0.7", "--frequency-penalty", "0.2", "--logprobs", "1"]
    traces = [str(tmp_path / name) for name in ("whole", "mended")]
    whole = hexgraft(*words, "--trace", traces[0])
    device.link.cut_after(60_000, 200_000)
    words += ["--trace", traces[1], "--backend", "device", "--reconnect", "30"]
    result = hexgraft(*words)
    assert result.code == 0, result.err
    assert result.err.count("waiting up to 30 s for the phone") == 2
    recalled = re.findall(r"(\d+) of (\d+) tokens come from the phone's cache file", result.err)
    assert len(recalled) == 2
    # At most the round in which the link broke is not in the file.
    assert all(int(text) - int(held) <= 16 for held, text in recalled)
    assert result.json["tokens"] == whole.json["tokens"]
    assert result.json["text"] == whole.json["text"]
    assert [each["token"] for each in result.json["logprobs"]] == result.json["tokens"]
    # Both traces hold every token; the file was not left behind.
    compared = hexgraft("compare", *traces)
    assert compared.code == 0, compared.out
    assert "identical: all 300 tokens are the same" in compared.out
    assert not any(caches(device).iterdir())


def test_reconnecting_with_a_draft_head(hexgraft: Hexgraft, device: LoopbackDevice, tmp_path: Path) -> None:
    """It reads the target's features of the whole text, which no file holds."""
    checkpoint = open_checkpoint(write_tiny_hf(tmp_path / "target"))
    draft = open_draft(write_head(tmp_path / "head", tmp_path / "target"), checkpoint)
    path, options = tmp_path / "bundle", ExportOptions((1, 8, 16), 256)
    export_bundle(checkpoint, path, draft=draft, options=options, report=lambda step: None)
    hexgraft("push", str(path))
    words = ["run", str(path), "-p", "abc", "--raw", "--max-tokens", "200", "--draft", "levels", "--json"]
    words += ["--temperature", "0.7"]
    whole = hexgraft(*words)
    device.link.cut_after(100_000, 300_000)
    result = hexgraft(*words, "--backend", "device", "--reconnect", "30")
    assert result.code == 0, result.err
    assert result.err.count("waiting up to 30 s for the phone") == 2
    assert "come from the phone's cache file" not in result.err
    assert result.json["tokens"] == whole.json["tokens"]
    assert not caches(device).exists() or not any(caches(device).iterdir())


def test_a_cache_file_that_is_damaged_is_computed_again(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reboot may leave it."""
    hexgraft("push", str(bundle.path))
    words = run_words(bundle, "abc", "--plain", tokens=200)
    whole = hexgraft(*words)
    await_phone = recovery.await_phone

    def damage(*args: Any, **kwargs: Any) -> Phone:
        file = caches(device) / "target"
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        return await_phone(*args, **kwargs)

    monkeypatch.setattr(recovery, "await_phone", damage)
    device.link.cut_after(30_000)
    result = hexgraft(*words, "--backend", "device", "--reconnect", "30")
    assert result.code == 0, result.err
    (recalled,) = re.findall(r"(\d+) of (\d+) tokens come from", result.err)
    assert 0 < int(recalled[0]) < int(recalled[1]) * 0.6
    assert result.json["tokens"] == whole.json["tokens"]


def test_too_little_space_for_a_cache_file(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    hexgraft("push", str(bundle.path))
    device.set_space(900_000_000)
    words = run_words(bundle, "abc", "--plain", tokens=200)
    whole = hexgraft(*words)
    device.link.cut_after(30_000)
    result = hexgraft(*words, "--backend", "device", "--reconnect", "30")
    assert result.code == 0, result.err
    assert "note: the cache is not kept on the phone: SM S928B" in result.err
    assert "waiting up to 30 s for the phone" in result.err
    assert "come from the phone's cache file" not in result.err
    assert result.json["tokens"] == whole.json["tokens"]
    assert list(caches(device).iterdir()) == []


def test_what_a_lost_run_leaves_is_cleaned(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, server: AdbServer
) -> None:
    hexgraft("push", str(bundle.path))
    device.link.cut_after(30_000)
    device.faults.refuse = True
    words = run_words(bundle, "abc", "--plain", tokens=200)
    assert hexgraft(*words, "--backend", "device", "--reconnect", "1").code == CONNECTION_LOST
    assert [file.name for file in caches(device).iterdir()] == ["target"]
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    device.faults.refuse = False
    server.disconnect(device.serial)
    server.connect([device.serial])
    open_phone(device.serial).wait(30)
    listed = hexgraft("clean", "--dry-run", "--json").json["folders"]
    assert [entry["folder"] for entry in listed if "/" not in entry["folder"]] == ["caches", "runs"]
    assert hexgraft("clean").code == 0
    assert not device.sandbox.path("/data/local/tmp/hexgraft").exists()


def test_reconnecting_to_a_phone_that_stays_away(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    hexgraft("push", str(bundle.path))
    device.link.cut_after(40_000)
    device.faults.refuse = True
    words = run_words(bundle, "abc", "--plain", tokens=300)
    result = hexgraft(*words, "--backend", "device", "--reconnect", "1")
    assert result.code == CONNECTION_LOST
    assert "it did not come back" in result.err
    assert result.json["tokens"]


def test_reconnecting_is_to_the_same_phone(
    hexgraft: Hexgraft, bundle: Bundle, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one that was connected meanwhile is not it, and takes nothing from the choice."""
    device = connect()
    hexgraft("push", str(bundle.path))
    words = run_words(bundle, "abc", "--plain", tokens=200)
    whole = hexgraft(*words)
    await_phone = recovery.await_phone
    others: list[LoopbackDevice] = []

    def plug_in(*args: Any, **kwargs: Any) -> Phone:
        others.append(connect(PHONES["s25"]))
        return await_phone(*args, **kwargs)

    monkeypatch.setattr(recovery, "await_phone", plug_in)
    device.link.cut_after(30_000)
    result = hexgraft(*words, "--backend", "device", "--reconnect", "20")
    assert result.code == 0, result.err
    assert result.json["tokens"] == whole.json["tokens"]
    assert not others[0].sandbox.path("/data/local/tmp/hexgraft").exists()


def test_reconnecting_to_a_phone_that_fell_silent(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link stands and nothing comes over it: the next runner is another one, on another stream."""
    hexgraft("push", str(bundle.path))
    words = run_words(bundle, "abc", "--plain", tokens=60)
    whole = hexgraft(*words)
    write, written = DeviceRunner.write, 0

    def fall_silent(self: DeviceRunner, data: bytes, /) -> int:
        nonlocal written
        written += 1
        if written == 30:
            self.stream.settimeout(1)
            os.kill(self.connection.hello.pid, signal.SIGSTOP)
        return write(self, data)

    monkeypatch.setattr(DeviceRunner, "write", fall_silent)
    result = hexgraft(*words, "--backend", "device", "-s", device.serial, "--reconnect", "30")
    assert result.code == 0, result.err
    assert "has not answered for 600 s; waiting up to 30 s" in result.err
    assert result.err.count("waiting up to 30 s") == 1
    assert result.json["tokens"] == whole.json["tokens"]


def test_reconnecting_ends_where_it_comes_no_further(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A phone without the memory for the text so far kills every new runner at the same place."""
    killed = RunnerLost("the runner ended: killed, likely out of memory")
    phones: list[str | None] = []
    made = 0

    def again(serial: str | None) -> Decoder:
        nonlocal made
        made += 1
        if made == 2:  # one try that came further
            decoder.tokens.append(4)
        raise killed

    monkeypatch.setattr(recovery, "await_phone", lambda serial, root, seconds: phones.append(serial))
    decoder: Any = SimpleNamespace(tokens=[1, 2, 3], session=None, drafter=SimpleNamespace(reader=None))
    options = {"serial": "X", "root": "/data/local/tmp/x", "backend": "device", "reconnect": 5}
    assert recovery.Recovery(decoder, options, again).recover(killed) is False
    assert made == 5
    assert phones == ["X"] * made
    assert "likely out of memory; it was lost 4 times at the same place" in capsys.readouterr().err
