"""`hexgraft run` on a phone: prompts, traces, choices, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from device_command import Hexgraft, command, run_words
from phones import Connect, promised, setting, wait_until

from hexgraft.host.adb.phone import open_phone
from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.models.errors import FAILED, INTERRUPTED, NO_DEVICE, USAGE

PROMPTS = ["plain", 'it\'s "$HOME" `id` \\ \n\t; & | < > # *', "é 漢 🙂 \u202e", "-n --help", "%s %n"]


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


def test_prompts_arrive_as_they_are(hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice) -> None:
    for prompt in PROMPTS:
        here = hexgraft(*run_words(bundle, prompt))
        there = hexgraft(*run_words(bundle, prompt, "--backend", "device"))
        assert (here.code, there.code) == (0, 0), there.err
        assert there.json["tokens"] == here.json["tokens"]
        assert there.json["text"] == here.json["text"]
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
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


def test_ctrl_c_keeps_the_text_and_leaves_nothing(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    hexgraft("push", str(bundle.path))
    device.faults.rate = 100_000.0
    words = ["run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "500", "--plain", "--show-tree"]
    running = command(*words, "--backend", "device", "--json")
    assert running.stderr is not None
    first = running.stderr.readline()  # of the first round's tree
    assert setting(device) == "7"
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == INTERRUPTED, first + err
    result = json.loads(out)
    assert result["finish"] == "interrupted"
    assert 0 < len(result["tokens"]) < 500
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    assert setting(device) == "0"


def test_ctrl_c_twice_ends_a_runner_that_hangs(
    hexgraft: Hexgraft, bundle: Bundle, device: LoopbackDevice
) -> None:
    hexgraft("push", str(bundle.path))
    device.faults.rate = 100_000.0  # the text takes a while
    running = command(
        "run", str(bundle.path), "-p", "abc", "--raw", "--max-tokens", "500", "--backend", "device"
    )
    phone = open_phone(device.serial)
    from hexgraft.host.adb import device_runner

    assert wait_until(lambda: device_runner.running(phone) is not None, 120)
    pid = device_runner.running(phone)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    for _ in range(2):
        running.send_signal(signal.SIGINT)
        time.sleep(1.0)
    _, err = running.communicate(timeout=300)
    assert running.returncode == INTERRUPTED, err
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
