"""How a runner ends: with its host, at once; and what the host says of one that ends first."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from conversation import Replay, golden_frames

from hexgraft.host.bundle import Bundle
from hexgraft.host.runner.connection import RunnerConnection
from hexgraft.host.runner.local import LocalRunner, find_ort
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.runner.wire import (
    PROTOCOL,
    ProtocolMismatch,
    RunnerError,
    RunnerLost,
    pack_frame,
    read_frame,
)
from hexgraft.host.session import causal

AT_ONCE = 10.0
"""Seconds: it takes less than one on a machine at rest, and what keeps a busy runner takes longer on any."""
HOST = """
import sys
from pathlib import Path
from hexgraft.host.runner.local import LocalRunner
runner = LocalRunner(Path(sys.argv[1]))
call = runner.connection.call
load = {"op": "load", "model": "m", "role": "target", "bundle": sys.argv[2], "provider": "cpu"}
call([load])
print(runner.process.pid, flush=True)
one = {"op": "forward", "model": "m", "tokens": [1] * 32, "positions": [0] * 32, "prefix": 0}
while True:
    call([load] * 4000 if sys.argv[3] == "busy" else [one])
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits for its parent to take note of its end does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def assert_gone(pid: int) -> None:
    end = time.monotonic() + AT_ONCE
    while alive(pid):
        assert time.monotonic() < end, f"the runner {pid} outlives its host"
        time.sleep(0.01)


@pytest.mark.parametrize("what", ["passes", "busy"])
@pytest.mark.parametrize("moment", [0.0, 0.07, 0.31])
def test_no_runner_survives_its_host(binary: Path, bundle: Bundle, what: str, moment: float) -> None:
    """Busy: thousands of loads in one request keep the runner away from its input for half a minute."""
    command = [sys.executable, "-c", HOST, str(binary), str(bundle.path), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert alive(pid)
        time.sleep(moment)
        host.kill()
    assert_gone(pid)


def start(binary: Path, **popen: object) -> subprocess.Popen[bytes]:
    command = [str(binary), "--ort", str(find_ort())]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, **popen)  # type: ignore[call-overload]
    assert process.stdout is not None
    read_frame(process.stdout)
    return process  # type: ignore[no-any-return]


@pytest.mark.parametrize("whole", [True, False])
def test_busy_runner_sees_its_socket_close(binary: Path, bundle: Bundle, whole: bool) -> None:
    """A shell service hands out sockets, and may close one direction only."""
    ours, theirs = socket.socketpair()
    command = [str(binary), "--ort", str(find_ort())]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        theirs.close()
        with ours, ours.makefile("rb") as answers:
            read_frame(answers)
            load = {
                "op": "load",
                "model": "m",
                "role": "target",
                "bundle": str(bundle.path),
                "provider": "cpu",
            }
            ours.sendall(pack_frame({"id": 1, "ops": [load] * 4000}))
            time.sleep(0.1)
            assert process.poll() is None
            if whole:
                answers.close()
                ours.close()
            else:
                ours.shutdown(socket.SHUT_WR)
            assert process.wait(timeout=AT_ONCE) == 3


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_hang_up_ends_it_even_when_told_to_ignore(binary: Path, number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        process = start(binary, restore_signals=False)
    finally:
        signal.signal(number, before)
    with process:
        process.send_signal(number)
        assert process.wait(timeout=60) == -number


@pytest.mark.parametrize(("sent", "code"), [(b"", 0), (b"\x05\x00", 1), (b"\x05\x00\x00\x00\x82", 1)])
def test_end_of_input(binary: Path, sent: bytes, code: int) -> None:
    with start(binary) as process:
        assert process.stdin is not None
        process.stdin.write(sent)
        process.stdin.close()
        assert process.wait(timeout=60) == code


def test_requests_before_the_end_are_answered(binary: Path) -> None:
    """As with `cat frames | hexgraft-runner`."""
    with start(binary) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pack_frame({"id": 1, "ops": [{"op": "stats"}]}) * 5)
        process.stdin.close()
        for _ in range(5):
            assert b"passes" in read_frame(process.stdout)


def test_arguments(binary: Path) -> None:
    done = subprocess.run([binary, "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert f"protocol {PROTOCOL}" in done.stdout
    for wrong in (["--ort"], ["--what", "x"], ["x"]):
        done = subprocess.run([binary, *wrong], capture_output=True, text=True)
        assert done.returncode == 2
        assert "usage:" in done.stderr


def test_libraries_may_print(binary: Path, tmp_path: Path) -> None:
    """Vendor libraries log to stdout, which must not reach the protocol."""
    source = tmp_path / "noisy.c"
    source.write_text(
        "#include <stdio.h>\n"
        '__attribute__((constructor)) static void say(void) { puts("noise"); fflush(stdout); }\n'
    )
    noisy = tmp_path / "libnoisy.so"
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", str(source), "-o", str(noisy)], check=True)
    runner = LocalRunner(binary, ort=noisy)
    assert runner.connection.hello.error is not None
    assert "not ONNX Runtime" in runner.connection.hello.error.message
    runner.close()
    assert "noise" in runner.stderr


def test_runner_killed_under_the_host(binary: Path, bundle: Bundle) -> None:
    runner = LocalRunner(binary)
    session = RunnerSession(runner.connection, str(bundle.path))
    session.forward([1], [0], causal(0, 1))
    runner.process.kill()
    runner.process.wait()
    with pytest.raises(RunnerLost, match="SIGKILL") as caught:
        session.forward([1], [0], causal(0, 1))
    assert caught.value.exit_code == 3
    assert caught.value.hint
    with pytest.raises(RunnerLost):
        session.forward([1], [0], causal(0, 1))
    session.close()
    runner.close()


def test_runner_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="cannot be started"):
        LocalRunner(tmp_path / "none")
    script = tmp_path / "runner"
    script.write_text("#!/bin/sh\necho CANNOT LINK EXECUTABLE >&2\nexit 5\n")
    script.chmod(0o755)
    with pytest.raises(RunnerLost, match="exit status 5; it said: CANNOT LINK EXECUTABLE"):
        LocalRunner(script)
    script.write_text("#!/bin/sh\necho hello there, I am no runner\nexec sleep 60\n")
    with pytest.raises(RunnerLost, match="not a protocol frame"):
        LocalRunner(script)


def test_interrupted_request_ends_the_conversation() -> None:
    """After Ctrl-C in the middle of a request the next answer would be the wrong one."""

    class Interrupting(Replay):
        def write(self, data: object) -> int:
            raise KeyboardInterrupt

    stream = Interrupting(golden_frames()[1])
    connection = RunnerConnection(stream, stream)
    with contextlib.suppress(KeyboardInterrupt):
        connection.call([{"op": "stats"}])
    with pytest.raises(RunnerLost, match="is gone"):
        connection.call([{"op": "stats"}])
    connection.close()


@pytest.mark.parametrize("protocol", [0, PROTOCOL + 1])
def test_other_versions_are_refused(protocol: int) -> None:
    hello = msgspec.msgpack.encode({"hello": "hexgraft", "protocol": protocol, "version": "9.9"})
    stream = Replay([hello])
    with pytest.raises(ProtocolMismatch, match=rf"9\.9.*protocol {protocol}.*protocol {PROTOCOL}"):
        RunnerConnection(stream, stream)


def test_answers_to_other_requests_are_refused() -> None:
    hello = golden_frames()[1][0]
    for answer in ({"id": 9, "results": []}, {"id": 0, "results": []}, {"id": 1, "results": []}):
        stream = Replay([hello, msgspec.msgpack.encode(answer)])
        connection = RunnerConnection(stream, stream)
        with pytest.raises(RunnerLost, match="answered"):
            connection.call([{"op": "stats"}])


def test_pid_is_the_process(binary: Path) -> None:
    runner = LocalRunner(binary)
    assert runner.connection.hello.pid == runner.process.pid != os.getpid()
    runner.close()
    assert runner.process.returncode == 0
