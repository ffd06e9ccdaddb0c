"""Decoding on a loopback phone: the tokens of the CPU, one run at a time, and nothing left behind."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from decoding import decode, tokens
from phones import Connect, promised, setting, wait_until

from hexgraft.host.adb import session as device_session
from hexgraft.host.adb.checkup import check_phone
from hexgraft.host.adb.device_runner import end_runner, running
from hexgraft.host.adb.errors import Busy, CommandFailed, ConnectionLost, NoDevice, Unfit
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.adb.release import find_release
from hexgraft.host.adb.session import (
    DeviceOptions,
    DevicePlace,
    DeviceSession,
    close_places,
    open_device_session,
)
from hexgraft.host.adb.store import Store
from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.host.runner.wire import RunnerLost
from hexgraft.models.errors import CONNECTION_LOST, FAILED, UsageError

pytestmark = pytest.mark.usefixtures("built_runner")


@pytest.fixture
def server(one_server: AdbServer) -> AdbServer:
    """The commands are tried with both versions of adb elsewhere."""
    return one_server


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("drafter", ["lookup", "levels"])
def test_same_rounds_as_in_process(bundle: Bundle, device: LoopbackDevice, drafter: str, heat: float) -> None:
    local = CpuSession(bundle, "target"), CpuSession(bundle, "draft")
    remote = tuple(open_device_session(bundle, role) for role in ("target", "draft"))
    assert [session.spec.provider for session in remote] == ["device", "device"]
    ours, theirs = (decode(bundle, t, drafter, d, heat) for t, d in (local, remote))
    assert len(tokens(ours)) == 50
    assert [r.tokens for r in theirs] == [r.tokens for r in ours]
    assert [r.accepted for r in theirs] == [r.accepted for r in ours]
    assert [r.tree.tokens.tolist() for r in theirs] == [r.tree.tokens.tolist() for r in ours]


def test_target_and_draft_share_a_runner_and_end_it(bundle: Bundle, device: LoopbackDevice) -> None:
    target, draft = (open_device_session(bundle, role) for role in ("target", "draft"))
    assert target.connection is draft.connection
    phone = open_phone()
    assert running(phone) == target.connection.hello.pid
    target.close()
    assert running(phone) is not None
    draft.close()
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    draft.close()


def test_the_second_run_is_told_who_holds_the_phone(bundle: Bundle, device: LoopbackDevice) -> None:
    session = open_device_session(bundle, "target")
    place = DevicePlace(bundle, DeviceOptions())
    with pytest.raises(Busy, match=rf"process {session.connection.hello.pid}$") as raised:
        _ = place.runner
    assert raised.value.exit_code == FAILED
    assert "shell kill" in str(raised.value.hint)
    assert tokens(decode(bundle, session)) == tokens(decode(bundle, CpuSession(bundle)))
    session.close()
    DevicePlace(bundle, DeviceOptions()).runner.close()


def test_android_s_own_shell_and_commands(bundle: Bundle, android: LoopbackDevice) -> None:
    session = open_device_session(bundle, "target")
    phone = open_phone()
    assert running(phone) == session.connection.hello.pid
    assert setting(android) == "7"
    place = DevicePlace(bundle, DeviceOptions())
    with pytest.raises(Busy):
        _ = place.runner
    assert tokens(decode(bundle, session)) == tokens(decode(bundle, CpuSession(bundle)))
    android.drop()
    with pytest.raises(ConnectionLost):
        decode(bundle, session)
    assert wait_until(lambda: android.sandbox.processes() == [], promised())
    assert setting(android) == "0"
    findings = list(check_phone(android.serial, phone.root, lambda facts: facts.soc))
    assert [f.what for f in findings if f.state == "failed"] == []
    states = {finding.what: finding.state for finding in findings}
    assert states["runner"] == "ok"
    assert states["unsigned PD"] == "unknown"


def test_two_phones_at_once(bundle: Bundle, connect: Connect) -> None:
    devices = connect(), connect(PHONES["s25"])
    with pytest.raises(NoDevice, match="there are 2 phones"):
        open_device_session(bundle, "target")
    sessions = [open_device_session(bundle, "target", DeviceOptions(d.serial)) for d in devices]
    results: list[list[int]] = [[], []]

    def run(i: int) -> None:
        results[i] = tokens(decode(bundle, sessions[i]))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    expected = tokens(decode(bundle, CpuSession(bundle)))
    assert results == [expected, expected]


def test_a_lost_link_is_told_and_the_next_run_works(bundle: Bundle, device: LoopbackDevice) -> None:
    session = open_device_session(bundle, "target")
    device.drop()
    with pytest.raises(ConnectionLost, match=r"the connection to SM S928B .* was lost") as raised:
        decode(bundle, session)
    assert raised.value.exit_code == CONNECTION_LOST
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    assert setting(device) == "0"
    open_phone().wait(30)
    again = open_device_session(bundle, "target")
    assert tokens(decode(bundle, again)) == tokens(decode(bundle, CpuSession(bundle)))


def test_a_killed_runner_is_told_and_the_next_run_works(bundle: Bundle, device: LoopbackDevice) -> None:
    session = open_device_session(bundle, "target")
    os.kill(session.connection.hello.pid, signal.SIGKILL)
    with pytest.raises(RunnerLost, match="killed, likely out of memory"):
        decode(bundle, session)
    again = open_device_session(bundle, "target")
    assert tokens(decode(bundle, again)) == tokens(decode(bundle, CpuSession(bundle)))


def test_the_adb_server_killed_in_between(server: AdbServer, bundle: Bundle, device: LoopbackDevice) -> None:
    session = open_device_session(bundle, "target")
    server.run("kill-server")
    with pytest.raises(ConnectionLost):
        decode(bundle, session)
    server.run("start-server")
    server.connect([device.serial])
    open_phone(device.serial).wait(30)
    again = open_device_session(bundle, "target")
    assert tokens(decode(bundle, again)) == tokens(decode(bundle, CpuSession(bundle)))


def test_a_runner_that_will_not_end_is_killed_by_its_number(bundle: Bundle, device: LoopbackDevice) -> None:
    session = open_device_session(bundle, "target")
    pid = session.connection.hello.pid
    os.kill(pid, signal.SIGSTOP)
    place = session._place
    assert place is not None
    place.close()
    assert wait_until(lambda: device.sandbox.processes() == [], promised())


def test_a_number_that_is_no_longer_a_runner_is_left_alone(device: LoopbackDevice) -> None:
    phone = open_phone()
    phone.run(f"mkdir -p {phone.root}")
    phone.run(f"setsid sh -c 'echo $$ > {phone.root}/run.pid; exec sleep 67' < /dev/null > /dev/null 2>&1 &")
    assert wait_until(lambda: len(device.sandbox.processes()) == 1)
    assert wait_until(lambda: phone.run(f"cat {phone.root}/run.pid").code == 0)
    assert running(phone) is None
    end_runner(phone, patience=0)
    assert len(device.sandbox.processes()) == 1


def test_kill_9_of_the_host_leaves_nothing(bundle: Bundle, device: LoopbackDevice, binary: Path) -> None:
    code = (
        "import sys, itertools\n"
        "from pathlib import Path\n"
        "from hexgraft.host.bundle import open_bundle\n"
        "from hexgraft.host.adb.session import open_device_session\n"
        "from hexgraft.host.session import causal\n"
        "session = open_device_session(open_bundle(Path(sys.argv[1])), 'target')\n"
        "print('running', flush=True)\n"
        "for i in itertools.count():\n"
        "    session.forward([i % 200], [0], causal(0, 1)).topk(1)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", code, str(bundle.path)], stdout=subprocess.PIPE)
    assert host.stdout is not None
    assert host.stdout.readline() == b"running\n"
    assert setting(device) == "7"
    host.kill()
    host.wait()
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    assert setting(device) == "0"
    host.stdout.close()


def test_an_unwanted_exit_ends_the_runner(bundle: Bundle, device: LoopbackDevice) -> None:
    open_device_session(bundle, "target")
    close_places()
    assert wait_until(lambda: device.sandbox.processes() == [], promised())
    assert device_session._places == {}


def test_a_runner_of_another_build_is_pushed_beside(
    bundle: Bundle, device: LoopbackDevice, binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_device_session(bundle, "target").close()
    other = tmp_path / "hexgraft-runner"
    other.write_bytes(binary.read_bytes() + b"\0")
    monkeypatch.setenv("HEXGRAFT_RUNNER", str(other))
    open_device_session(bundle, "target").close()
    kinds = [entry.kind for entry in Store(open_phone()).present()]
    assert sorted(kinds) == ["bundles", "caches", "runners", "runners", "runs"]


def test_a_runner_that_cannot_start_says_why(
    bundle: Bundle, device: LoopbackDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "hexgraft-runner"
    broken.write_text(
        '#!/bin/sh\necho \'CANNOT LINK EXECUTABLE "x": library "libfoo.so" not found\' >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("HEXGRAFT_RUNNER", str(broken))
    with pytest.raises(CommandFailed, match=r"did not start: .* did not find libfoo\.so"):
        open_device_session(bundle, "target")
    broken.write_text("#!/bin/sh\nexec nothing-of-the-kind\n")
    with pytest.raises(CommandFailed, match=r"cannot be started: .*not found"):
        open_device_session(bundle, "target")


def test_what_the_runner_is_started_with(
    bundle: Bundle, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our folder first for both loaders, semicolons for the NPU's; lock and number are the runner's."""
    spy = tmp_path / "hexgraft-runner"
    spy.write_text(
        '#!/bin/sh\nfor v in "$LD_LIBRARY_PATH" "$ADSP_LIBRARY_PATH" "$$ $(cat run.pid)" "$*" '
        '"$(readlink /proc/$$/fd/9)"; do echo "$v" >&2; done\nexit 3\n'
    )
    spy.chmod(0o755)
    monkeypatch.setenv("HEXGRAFT_RUNNER", str(spy))
    for shell in filter(None, ("/bin/sh", shutil.which("mksh"))):
        device = connect(shell=shell)
        lines: list[str] = []
        options = DeviceOptions(device.serial, note=lines.append)
        with pytest.raises(CommandFailed, match="did not start"):
            open_device_session(bundle, "target", options)
        root = f"{device.sandbox.folder}/data/local/tmp/hexgraft"
        folder = f"{root}/{find_release(f'linux-{platform.machine()}', qnn=False).folder.name}"
        first, second, numbers, words, lock = lines[:5]
        assert first == folder
        assert second.split(";")[0] == folder
        assert second.endswith(";/dsp") or second.endswith(f";{device.sandbox.folder}/dsp")
        assert numbers.split()[0] == numbers.split()[1]
        assert re.fullmatch(
            rf"--ort {re.escape(folder)}/libonnxruntime\.so --caches caches "
            rf"--record runs/\d{{8}}-\d{{6}}-{numbers.split()[0]}\.jsonl",
            words,
        )
        assert lock == f"{root}/run.lock"


def test_a_program_that_is_no_runner(
    bundle: Bundle, device: LoopbackDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "hexgraft-runner"
    other.write_text("#!/bin/sh\necho hello world\n")
    monkeypatch.setenv("HEXGRAFT_RUNNER", str(other))
    with pytest.raises(CommandFailed, match="did not start: the runner's answer is not a protocol frame"):
        open_device_session(bundle, "target")


def test_releases_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXGRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Unfit, match="there is no runner for android-x86_64"):
        find_release("android-x86_64", qnn=False)
    with pytest.raises(UsageError, match="android-arm64") as raised:
        find_release("android-arm64", qnn=False)
    assert "hexgraft device" in str(raised.value.hint)


def test_sessions_say_what_a_session_in_process_says(bundle: Bundle, device: LoopbackDevice) -> None:
    with pytest.raises(UsageError, match="unknown provider"):
        open_device_session(bundle, "target", DeviceOptions(provider="gpu"))
    session = open_device_session(bundle, "target", widths=[8, 32], whole=True)
    local = CpuSession(bundle, "target", widths=[8, 32], whole=True)
    assert isinstance(session, DeviceSession)
    assert session.spec.widths == local.spec.widths
    assert tokens(decode(bundle, session)) == tokens(decode(bundle, local))
