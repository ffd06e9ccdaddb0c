"""The commands that use a phone: words, JSON, exit codes, and what a user is told when something breaks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phones import Connect, setting, wait_until

from hexgraft.host.adb.phone import open_phone
from hexgraft.host.adb.session import close_places
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli import main as cli
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.models.errors import CONNECTION_LOST, FAILED, INTERRUPTED, NO_DEVICE, USAGE

PROMPTS = ["plain", 'it\'s "$HOME" `id` \\ \n\t; & | < > # *', "é 漢 🙂 \u202e", "-n --help", "%s %n"]


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Hexgraft:
    """The command, in this process; stdin is empty."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def __call__(self, *words: str) -> Result:
        self._capfd.readouterr()
        with pytest.raises(SystemExit) as raised:
            cli.main(list(words))
        out, err = self._capfd.readouterr()
        code = raised.value.code
        assert isinstance(code, int)
        close_places()
        return Result(code, out, err)


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


@pytest.fixture
def hexgraft(
    capfd: pytest.CaptureFixture[str], binary: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hexgraft]:
    monkeypatch.setenv("HEXGRAFT_RUNNER", str(binary))
    monkeypatch.setenv("COLUMNS", "120")
    yield Hexgraft(capfd)
    close_places()


def run_words(bundle: Bundle, prompt: str, *more: str) -> list[str]:
    return ["run", str(bundle.path), "-p", prompt, "--raw", "--max-tokens", "24", "--json", *more]


# ------------------------------------------------------------------- devices


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
    assert "adb sees no phone; without one: hexgraft device loopback" in result.err


# ---------------------------------------------------------------- push, clean


def test_push_twice_and_clean(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    first = hexgraft("push", str(bundle.path))
    assert first.code == 0
    path = f"/data/local/tmp/hexgraft/bundles/{bundle.digest[:16]}"
    assert first.out == path + "\n"
    assert f"pushed {len(bundle.manifest.files) + 3} files" in first.err
    start = time.monotonic()
    second = hexgraft("push", str(bundle.path), "--json")
    assert time.monotonic() - start < 20
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


def test_push_elsewhere(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    assert hexgraft("push", str(bundle.path), "--root", "/sdcard/x").code == USAGE
    assert hexgraft("push", str(bundle.path), "--root", "/data/local/tmp/my own").code == 0
    assert device.sandbox.path("/data/local/tmp/my own/runners").is_dir()


def test_push_to_a_full_phone(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    device.set_space(100_000)
    result = hexgraft("push", str(bundle.path))
    assert result.code == FAILED
    assert "and a tenth more are needed" in result.err
    assert "hint: delete something on the phone" in result.err
    device.set_space(None)
    assert hexgraft("push", str(bundle.path)).code == 0


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


def test_clean_while_a_run_goes_on(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    from hexgraft.host.adb.session import open_device_session

    session = open_device_session(bundle, "target")
    result = hexgraft("clean")
    assert result.code == FAILED
    assert (
        f"a run is going on on SM S928B ({device.serial}): process {session.connection.hello.pid}"
        in result.err
    )


# -------------------------------------------------------------------- doctor


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


# ----------------------------------------------------------------------- run


def test_prompts_arrive_as_they_are(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    for prompt in PROMPTS:
        here = hexgraft(*run_words(bundle, prompt))
        there = hexgraft(*run_words(bundle, prompt, "--backend", "device"))
        assert (here.code, there.code) == (0, 0), there.err
        assert there.json["tokens"] == here.json["tokens"]
        assert there.json["text"] == here.json["text"]
    assert wait_until(lambda: device.sandbox.processes() == [], 2)
    assert setting(device) == "0"


def test_a_prompt_of_300_kb_is_measured_not_cut(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, tmp_path: Path
) -> None:
    file = tmp_path / "long.txt"
    file.write_text("it's $HOME `x` 🙂\n" * 15_000)
    words = ["run", str(bundle.path), "-f", str(file), "--raw", "--json"]
    here, there = hexgraft(*words), hexgraft(*words, "--backend", "device")
    assert there.code == here.code == FAILED
    assert there.err.splitlines()[0] == here.err.splitlines()[0]
    assert "tokens, the context holds" in there.err


def test_a_prompt_with_a_nul_is_refused(hexgraft: Hexgraft, bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "nul"
    file.write_bytes(b"ab\0c")
    result = hexgraft("run", str(bundle.path), "-f", str(file), "--raw")
    assert result.code == USAGE
    assert "the prompt has a NUL at character 2" in result.err


def test_traces_compare_identical(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice, tmp_path: Path
) -> None:
    traces = [str(tmp_path / name) for name in ("cpu", "device")]
    for backend, trace in zip(("cpu", "device"), traces, strict=True):
        done = hexgraft(*run_words(bundle, "abc", "--backend", backend, "--trace", trace))
        assert done.code == 0, done.err
    compared = hexgraft("compare", *traces)
    assert compared.code == 0, compared.out + compared.err
    assert "identical" in compared.out


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


# ---------------------------------------------------- whole processes, loopback


def command(*words: str, **kwargs: Any) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | kwargs
    return subprocess.Popen([sys.executable, "-m", "hexgraft.host.cli", *words], **pipes)


def test_ctrl_c_keeps_the_text_and_leaves_nothing(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    hexgraft("push", str(bundle.path))
    device.faults.rate = 400_000.0
    words = ["run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "500", "--plain"]
    running = command(*words, "--backend", "device", "--json")
    assert wait_until(lambda: device.sandbox.processes() != [] and setting(device) == "7", 20)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert running.returncode == INTERRUPTED, err
    result = json.loads(out)
    assert result["finish"] == "interrupted"
    assert wait_until(lambda: device.sandbox.processes() == [], 2)
    assert setting(device) == "0"


def test_ctrl_c_twice_ends_a_runner_that_hangs(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    hexgraft("push", str(bundle.path))
    running = command(
        "run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "500", "--backend", "device"
    )
    phone = open_phone(device.serial)
    from hexgraft.host.adb import device_runner

    assert wait_until(lambda: device_runner.running(phone) is not None, 20)
    pid = device_runner.running(phone)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        time.sleep(0.3)
    _, err = running.communicate(timeout=30)
    assert running.returncode == INTERRUPTED, err
    assert wait_until(lambda: device.sandbox.processes() == [], 2)


def test_loopback_runs_a_command_and_ends(hexgraft: Hexgraft, bundle: Bundle, server: Any) -> None:
    """The way a newcomer meets it: nothing of the user's adb is used, nothing is left."""
    done = command("device", "loopback", "--phone", "s25", "--", "hexgraft", "devices", "--json")
    out, err = done.communicate(timeout=60)
    assert done.returncode == 0, err
    (entry,) = json.loads(out)
    assert entry["model"] == "SM S931B"
    assert entry["state"] == "device"


def test_loopback_waits_for_ctrl_c(hexgraft: Hexgraft, tmp_path: Path) -> None:
    waiting = command("device", "loopback", "--folder", str(tmp_path / "phone"))
    assert waiting.stdout is not None
    assert waiting.stdout.readline().startswith(b"127.0.0.1:")
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=20)
    assert waiting.returncode == 0
    assert (tmp_path / "phone" / "properties").is_file()


def test_loopback_takes_no_nonsense(hexgraft: Hexgraft) -> None:
    assert hexgraft("device", "loopback", "--shell", "/nowhere/sh").code == USAGE
    assert hexgraft("device", "loopback", "--phone", "nokia").code == USAGE


def test_two_phones_ask_for_a_choice(hexgraft: Hexgraft, bundle: Bundle, connect: Connect) -> None:
    connect()
    second = connect(PHONES["s25"])
    result = hexgraft(*run_words(bundle, "abc", "--backend", "device"))
    assert result.code == NO_DEVICE
    assert "there are 2 phones" in result.err
    assert "choose one: --serial" in result.err
    assert hexgraft(*run_words(bundle, "abc", "--backend", "device", "-s", second.serial)).code == 0


def test_the_cpu_has_no_npu(hexgraft: Hexgraft, bundle: Bundle) -> None:
    result = hexgraft(*run_words(bundle, "abc", "--provider", "htp"))
    assert result.code == USAGE
    assert "--backend cpu has no provider htp" in result.err
