"""`hexgraft device loopback`, the way a newcomer meets it."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from device_command import Hexgraft, command

from hexgraft.host.bundle import Bundle
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.models.errors import INTERRUPTED, USAGE


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands of adb are tried with both versions elsewhere."""
    return one_server


def test_loopback_runs_a_command_and_ends(hexgraft: Hexgraft, bundle: Bundle, server: Any) -> None:
    """The way a newcomer meets it: nothing of the user's adb is used, nothing is left."""
    done = command("device", "loopback", "--phone", "s25", "--", "hexgraft", "devices", "--json")
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    (entry,) = json.loads(out)
    assert entry["model"] == "SM S931B"
    assert entry["state"] == "device"


def test_loopback_waits_for_ctrl_c(hexgraft: Hexgraft, tmp_path: Path) -> None:
    waiting = command("device", "loopback", "--folder", str(tmp_path / "phone"))
    assert waiting.stdout is not None
    assert waiting.stdout.readline().startswith(b"127.0.0.1:")
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=120)
    assert waiting.returncode == 0
    assert (tmp_path / "phone" / "properties").is_file()


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("trap 'sleep 1; echo kept; exit 7' INT; echo ready; while :; do sleep 0.1; done", 7, b"kept\n"),
        ("trap 'echo heard' INT; echo ready; sleep 1; adb devices -l | grep -c SM_S928B", 0, b"heard\n1\n"),
        ("echo ready; exec sleep 60", INTERRUPTED, b""),
    ],
)
def test_ctrl_c_is_for_the_command(server: AdbServer, script: str, code: int, said: bytes) -> None:
    """It decides, takes its time, and keeps the phone meanwhile; a terminal tells both of Ctrl-C."""
    running = command("device", "loopback", "--", "sh", "-c", script, start_new_session=True)
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out, err) == (code, said, b"")


def test_sigterm_ends_the_command_too(server: AdbServer) -> None:
    script = "trap 'echo ended; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    running = command("device", "loopback", "--", "sh", "-c", script)
    assert running.stdout is not None
    assert running.stdout.readline() == b"ready\n"
    running.terminate()
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out, err) == (INTERRUPTED, b"ended\n", b"")


def test_loopback_takes_no_nonsense(hexgraft: Hexgraft) -> None:
    assert hexgraft("device", "loopback", "--shell", "/nowhere/sh").code == USAGE
    assert hexgraft("device", "loopback", "--phone", "nokia").code == USAGE
    assert hexgraft("device", "loopback", "--port", "99999").code == USAGE
    assert hexgraft("device", "loopback", "--space", "-5").code == USAGE


def test_loopback_at_a_port_that_is_taken(hexgraft: Hexgraft) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        before = set(Path(tempfile.gettempdir()).glob("hexgraft-phone-*"))
        result = hexgraft("device", "loopback", "--port", str(port))
        assert set(Path(tempfile.gettempdir()).glob("hexgraft-phone-*")) <= before
    assert result.code == USAGE
    assert f"error: --port {port} cannot be had: Address already in use" in result.err


def test_tests_where_there_are_none(hexgraft: Hexgraft) -> None:
    result = hexgraft("device", "build", "--preset", "android-arm64", "--tests")
    assert result.code == USAGE
    assert "the preset android-arm64 has no tests" in result.err
