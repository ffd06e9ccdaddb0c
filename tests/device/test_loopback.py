"""The loopback phone keeps to what adbd does, as far as a real adb can tell."""

from __future__ import annotations

import hashlib
import random
import subprocess
from pathlib import Path

import pytest
from phones import Connect, wait_until

from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.models.errors import HexgraftError

TMP = "/data/local/tmp"


class Adb:
    """The command `adb -s SERIAL`."""

    def __init__(self, server: AdbServer, device: LoopbackDevice) -> None:
        self._words = [server.adb, "-s", device.serial]
        self._environment = server.environment

    def __call__(self, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*self._words, *words], env=self._environment, input=given, capture_output=True, timeout=120
        )


@pytest.fixture
def adb(server: AdbServer, device: LoopbackDevice) -> Adb:
    return Adb(server, device)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data"
    file.write_bytes(random.Random(4).randbytes(3_000_000))
    return file


def test_is_listed_with_its_names(server: AdbServer, connect: Connect) -> None:
    device = connect(PHONES["s25"])
    line = next(line for line in server.run("devices", "-l").splitlines() if line.startswith(device.serial))
    assert line.split()[1] == "device"
    assert "model:SM_S931B" in line
    assert "product:pa1qxxx" in line


@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("exit 37", 37, b"", b""),
        ("kill -9 $$", 137, b"", b""),
        ("echo out; echo err >&2", 0, b"out\n", b"err\n"),
        ("printf 'a\\0b'", 0, b"a\0b", b""),
    ],
)
def test_shell_tells_output_and_code(adb: Adb, command: str, code: int, out: bytes, err: bytes) -> None:
    done = adb("shell", command)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_shell_passes_standard_input(adb: Adb) -> None:
    given = bytes(range(256)) * 2000
    done = adb("shell", "cat; exit 3", given=given)
    assert done.returncode == 3
    assert done.stdout == given


def test_exec_is_byte_exact(adb: Adb) -> None:
    assert adb("exec-out", "printf '\\r\\n\\0\\377'").stdout == b"\r\n\0\xff"


def test_files_go_and_come_back(adb: Adb, data: Path, tmp_path: Path) -> None:
    assert adb("push", str(data), f"{TMP}/a/b c").returncode == 0
    assert adb("shell", f"sha256sum < '{TMP}/a/b c'").stdout.split()[0].decode() == digest(data)
    back = tmp_path / "back"
    assert adb("pull", f"{TMP}/a/b c", str(back)).returncode == 0
    assert back.read_bytes() == data.read_bytes()


def test_folders_go_and_come_back(adb: Adb, tmp_path: Path) -> None:
    for name in ("x/1", "x/y/2", "x/ü"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    assert adb("push", str(tmp_path / "x"), TMP).returncode == 0
    assert adb("pull", f"{TMP}/x", str(tmp_path / "back")).returncode == 0
    for name in ("1", "y/2", "ü"):
        assert (tmp_path / "back" / name).read_text() == f"x/{name}"


def test_missing_file_is_refused_with_a_reason(adb: Adb, tmp_path: Path) -> None:
    done = adb("pull", f"{TMP}/none", str(tmp_path / "none"))
    assert done.returncode != 0
    assert b"No such file" in done.stderr + done.stdout


def test_a_path_does_not_lead_out_of_the_sandbox(adb: Adb, device: LoopbackDevice, data: Path) -> None:
    assert adb("push", str(data), f"{TMP}/../../../../../../deep").returncode == 0
    assert (device.sandbox.folder / "deep").is_file()


def test_a_new_connection_finds_nothing_of_a_broken_push(
    adb: Adb, device: LoopbackDevice, data: Path
) -> None:
    """As adbd does: what its file service did not receive whole is unlinked."""
    device.faults.drops.append(1_000_000)
    assert b"1 file pushed" not in adb("push", str(data), f"{TMP}/part").stdout
    place = device.sandbox.path(f"{TMP}/part")
    assert wait_until(lambda: not place.exists())


def test_a_refusing_phone_is_unauthorized(server: AdbServer, connect: Connect) -> None:
    device = connect(refuse=True)
    assert wait_until(lambda: "unauthorized" in line_of(server, device))


def test_an_old_phone_has_no_exit_codes(server: AdbServer, connect: Connect) -> None:
    device = connect(no_shell_v2=True)
    done = Adb(server, device)("shell", "echo err >&2; exit 5")
    assert done.returncode == 0
    assert b"err" in done.stdout


def test_a_full_phone_says_so(adb: Adb, device: LoopbackDevice, data: Path) -> None:
    device.set_space(1_000_000)
    done = adb("push", str(data), f"{TMP}/full")
    assert done.returncode != 0
    assert b"No space left on device" in done.stderr + done.stdout
    assert not device.sandbox.path(f"{TMP}/full").exists()


def test_a_full_phone_stops_appending(adb: Adb, device: LoopbackDevice, data: Path) -> None:
    device.set_space(1_000_000)
    done = adb("shell", f"exec cat >> {TMP}/full", given=data.read_bytes())
    assert done.returncode == 1
    assert b"No space left on device" in done.stderr
    assert adb("shell", f"df -k {TMP} | tail -n 1").stdout.split()[3] == b"0"


def test_lost_exec_bits_and_a_wrong_byte(adb: Adb, device: LoopbackDevice, data: Path) -> None:
    data.chmod(0o755)
    device.faults.strip_exec = True
    device.faults.corrupt = 2_000_000
    assert adb("push", str(data), f"{TMP}/x").returncode == 0
    received = device.sandbox.path(f"{TMP}/x")
    assert not received.stat().st_mode & 0o111
    pairs = enumerate(zip(received.read_bytes(), data.read_bytes(), strict=True))
    assert [i for i, (a, b) in pairs if a != b] == [2_000_000]


def test_permissions_are_copied_to_group_and_others(adb: Adb, device: LoopbackDevice, data: Path) -> None:
    data.chmod(0o700)
    assert adb("push", str(data), f"{TMP}/x").returncode == 0
    assert device.sandbox.path(f"{TMP}/x").stat().st_mode & 0o777 == 0o777


def test_hang_up_reaches_the_shell_only(adb: Adb, device: LoopbackDevice) -> None:
    """The rule that makes `exec` necessary: a child of the shell outlives the connection."""
    command = [*adb._words, "shell", "sleep 61; true"]
    hanging = subprocess.Popen(command, env=adb._environment, stdin=subprocess.PIPE)
    assert wait_until(lambda: len(device.sandbox.processes()) == 2)
    device.drop()
    hanging.wait(timeout=60)
    assert wait_until(lambda: len(device.sandbox.processes()) == 1)
    (left,) = device.sandbox.processes()
    assert b"sleep" in Path(f"/proc/{left}/cmdline").read_bytes()


def test_closing_ends_processes_in_sessions_of_their_own(adb: Adb, device: LoopbackDevice) -> None:
    adb("shell", "setsid sleep 62 </dev/null >/dev/null 2>&1 &")
    assert wait_until(lambda: len(device.sandbox.processes()) == 1)
    device.close()
    assert device.sandbox.processes() == []
    assert not device.sandbox.folder.exists()


def test_a_reboot_changes_the_boot_and_ends_everything(
    server: AdbServer, adb: Adb, device: LoopbackDevice
) -> None:
    before = adb("shell", "cat /proc/sys/kernel/random/boot_id").stdout
    adb("shell", "setsid sleep 63 </dev/null >/dev/null 2>&1 &")
    device.reboot()
    assert device.sandbox.processes() == []
    assert wait_until(lambda: adb("shell", "true").returncode == 0, 60)
    after = adb("shell", "cat /proc/sys/kernel/random/boot_id").stdout
    assert len(after) == 33
    assert after != before


def test_settings_and_properties(adb: Adb) -> None:
    assert adb("shell", "getprop ro.soc.model").stdout == b"SM8650\n"
    assert b"[ro.soc.model]: [SM8650]\n" in adb("shell", "getprop").stdout
    assert adb("shell", "settings get global none").stdout == b"null\n"
    adb("shell", "settings put global none 3")
    assert adb("shell", "settings get global none").stdout == b"3\n"


def test_everything_is_killed_after_so_many_bytes(adb: Adb, device: LoopbackDevice) -> None:
    device.faults.kill_after = 100_000
    done = adb("shell", f"exec cat > {TMP}/x", given=bytes(500_000))
    assert done.returncode == 137
    assert device.faults.kill_after is None
    assert device.sandbox.path(f"{TMP}/x").stat().st_size < 500_000


def test_an_adb_that_hangs_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that another version's server keeps from ending its own."""
    adb = tmp_path / "adb"
    adb.write_text('#!/bin/sh\n[ "$1" = start-server ] || exec sleep 60\n')
    adb.chmod(0o755)
    monkeypatch.setattr("hexgraft.host.loopback.adb_server._TIMEOUT", 0.5)
    with AdbServer(str(adb)) as server:
        server.connect(["127.0.0.1:1"])
        home = Path(server.variables["HOME"])
        assert home.is_dir()
    assert not home.exists()


def test_a_failing_adb_command_raises(server: AdbServer) -> None:
    with pytest.raises(HexgraftError, match=r"adb nonsense failed: adb: unknown command nonsense$"):
        server.run("nonsense")


def line_of(server: AdbServer, device: LoopbackDevice) -> str:
    lines = server.run("devices").splitlines()
    return next((line for line in lines if line.startswith(device.serial)), "")


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
