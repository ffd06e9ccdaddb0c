"""What the runner leaves of a run: its record."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from phones import wait_until

from hexgraft.host.bundle import Bundle
from hexgraft.host.runner.local import LocalRunner
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.session import causal
from hexgraft.models.errors import BundleError


def events(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_is_recorded(binary: Path, bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    runner = LocalRunner(binary, options=["--record", str(file)])
    session = RunnerSession(runner.connection, str(bundle.path), threads=1)
    session.forward([5, 6, 7], [0, 1, 2], causal(0, 3))
    session.store([0, 1, 2], [0, 1, 2])
    session.forward([8], [3], causal(3, 1))
    with pytest.raises(BundleError):
        RunnerSession(runner.connection, "nowhere")
    runner.close()
    seen = [event for event in events(file) if event["event"] != "state"]
    assert [event["event"] for event in seen] == ["start", "load", "pass", "pass", "error", "end"]
    start, load, first, second, error, end = seen
    assert (start["pid"], start["protocol"]) == (runner.process.pid, runner.connection.hello.protocol)
    assert (load["role"], load["layers"], load["threads"]) == ("target", bundle.target.layers, 1)
    assert [(each["count"], each["prefix"]) for each in (first, second)] == [(3, 0), (1, 3)]
    assert (error["op"], error["code"]) == ("load", "no_bundle")
    assert end["how"] == "bye"
    times = [event["t"] for event in seen]
    assert times == sorted(times)
    assert any("memory" in event for event in events(file))


def test_the_record_says_how_it_ended(binary: Path, tmp_path: Path) -> None:
    def how(name: str, end: Any) -> str:
        file = tmp_path / name
        runner = LocalRunner(binary, options=["--record", str(file)])
        end(runner)
        runner.process.wait(timeout=60)
        runner.close()
        last = events(file)[-1]
        assert last["event"] == "end"
        return str(last["how"])

    assert how("hup", lambda runner: runner.process.send_signal(signal.SIGHUP)) == "hang-up"
    assert how("term", lambda runner: runner.process.send_signal(signal.SIGTERM)) == "signal"
    assert how("eof", lambda runner: runner.process.stdin.close()) == "end of input"


def test_a_record_that_cannot_be_written_stops_nothing(binary: Path) -> None:
    runner = LocalRunner(binary, options=["--record", "/nowhere/run.jsonl"])
    assert runner.connection.call_one({"op": "stats"})["passes"] == []
    runner.close()
    assert wait_until(lambda: "/nowhere/run.jsonl cannot be written" in runner.stderr)
