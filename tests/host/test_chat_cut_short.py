"""Chats that end otherwise than by themselves: Ctrl-C, a lost link, and what is typed at a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command import hexgraft, last_error_of, spawn

from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.models.errors import CONNECTION_LOST, FAILED, HexgraftError


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has passes fail after so many, as those behind a link that is gone."""

    def lose_after(passes: int, code: int = CONNECTION_LOST) -> None:
        left, forward = iter(range(passes)), CpuSession.forward

        def cut(session: CpuSession, *arguments: Any) -> Any:
            if next(left, None) is None:
                error = HexgraftError("the link is gone", "plug it in")
                error.exit_code = code
                raise error
            return forward(session, *arguments)

        monkeypatch.setattr(CpuSession, "forward", cut)

    return lose_after


def test_a_lost_link_ends_a_script_after_the_text_so_far(bundle: Path, lose: Callable[..., None]) -> None:
    whole = hexgraft("chat", bundle, "--plain", "--max-tokens", "30", input="the fox\n")
    lose(12)
    result = hexgraft("chat", bundle, "--plain", "--max-tokens", "30", input="the fox\n")
    assert result.exit_code == CONNECTION_LOST
    assert last_error_of(result) == ("the link is gone", "plug it in")
    assert 0 < len(result.stdout) < len(whole.stdout)
    assert whole.stdout.startswith(result.stdout.rstrip("\n\ufffd"))


def test_a_failure_keeps_the_text_so_far(bundle: Path, tmp_path: Path, lose: Callable[..., None]) -> None:
    """Such as logits that overflow on an NPU after a thousand tokens."""
    words = ("run", bundle, "-p", "the fox", "--plain", "--max-tokens", "30")
    whole = json.loads(hexgraft(*words, "--json").stdout)
    lose(12, FAILED)
    result = hexgraft(*words, "--json", "--trace", tmp_path / "run.jsonl")
    assert result.exit_code == FAILED
    assert last_error_of(result) == ("the link is gone", "plug it in")
    kept = json.loads(result.stdout)
    assert kept["finish"] == "failed"
    assert 0 < len(kept["tokens"]) < 30
    assert kept["tokens"] == whole["tokens"][: len(kept["tokens"])]
    trace = read_trace(tmp_path / "run.jsonl")
    assert (trace.finish, trace.emitted) == ("failed", kept["tokens"])
    lose(0, FAILED)
    nothing = hexgraft(*words, "--json")
    assert (nothing.exit_code, nothing.stdout) == (FAILED, "")


def test_a_failure_ends_a_script_after_the_text_so_far(bundle: Path, lose: Callable[..., None]) -> None:
    whole = hexgraft("chat", bundle, "--plain", "--max-tokens", "30", input="the fox\n")
    lose(12, FAILED)
    result = hexgraft("chat", bundle, "--plain", "--max-tokens", "30", input="the fox\n")
    assert result.exit_code == FAILED
    assert last_error_of(result) == ("the link is gone", "plug it in")
    assert whole.stdout.startswith(result.stdout.rstrip("\n\ufffd"))
    assert result.stdout.endswith("\n")


def test_a_lost_link_is_said_and_the_turn_stays(
    bundle: Path, tmp_path: Path, typed: Callable[..., None], lose: Callable[..., None]
) -> None:
    saved = tmp_path / "talk.json"
    typed("the fox", "/stats", f"/save {saved}")
    lose(12)
    result = hexgraft("chat", bundle, "--plain", "--max-tokens", "30")
    assert result.exit_code == 0
    assert "error: the link is gone\n\nhint: plug it in\n[lost] " in result.stderr
    answer = json.loads(saved.read_text(encoding="utf-8"))["messages"][-1]
    assert answer["role"] == "assistant"
    assert answer["content"] + "\n" == result.stdout


def test_ctrl_c_in_a_script_keeps_the_text_and_leaves(endless: Path) -> None:
    with spawn("chat", endless, "--plain", "--max-tokens", "100000") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"the fox\nnever read\n")
        process.stdin.flush()
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert first
    assert rest.endswith(b"\n")
    assert b"Traceback" not in errors


@pytest.mark.parametrize("passes", [0, 5])
def test_a_second_ctrl_c_leaves_at_once(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., None], passes: int
) -> None:
    """Pressed while the prompt is read, and in the answer."""
    count, forward = iter(range(10**6)), CpuSession.forward

    def press(session: CpuSession, *arguments: Any) -> Any:
        if next(count) == passes:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return forward(session, *arguments)

    monkeypatch.setattr(CpuSession, "forward", press)
    typed("the fox", "/help")
    result = hexgraft("chat", bundle, "--plain", "--max-tokens", "30")
    assert result.exit_code == 130
    assert bool(result.stdout) == bool(passes)
    assert result.stderr.splitlines()[1:] == [""], "one line of greeting, and the end of the answer's line"


def test_the_first_ctrl_c_while_the_prompt_is_read_takes_the_message_back(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., None]
) -> None:
    saved, forward = tmp_path / "talk.json", CpuSession.forward

    def press(session: CpuSession, *arguments: Any) -> Any:
        monkeypatch.setattr(CpuSession, "forward", forward)
        signal.raise_signal(signal.SIGINT)
        return forward(session, *arguments)

    monkeypatch.setattr(CpuSession, "forward", press)
    typed("the fox", "the dog", f"/save {saved}")
    result = hexgraft("chat", bundle, "--max-tokens", "9")
    assert result.exit_code == 0
    assert "the message was taken back" in result.stderr
    talk = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    assert [(m["role"], m["content"] == "the dog") for m in talk] == [("user", True), ("assistant", False)]


class Terminal:
    """A chat at the other end of a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, since: int = 0) -> int:
        """Read until `text` shows behind `since`; where it ends."""
        self._read(lambda: text in self.seen[since:])
        return self.seen.index(text, since) + len(text)

    def wait_for_more(self, length: int) -> None:
        """Read until there are more than `length` letters in all."""
        self._read(lambda: len(self.seen) > length)

    def settle(self) -> None:
        """Wait until the program rests at its prompt: between showing it and waiting for keys, readline takes
        no notice of signals."""
        before, deadline = "", time.monotonic() + 240
        while (now := self._rest()) is None or now != before:
            assert time.monotonic() < deadline, self.seen
            before = now or ""
            time.sleep(0.5)

    def press_ctrl_c(self) -> None:
        self.settle()
        self.process.send_signal(signal.SIGINT)

    def _rest(self) -> str | None:
        """How often the main thread has gone to sleep, None while it is awake."""
        words = Path(f"/proc/{self.process.pid}/status").read_text()
        found = dict(line.split(":\t", 1) for line in words.splitlines() if ":\t" in line)
        return found["voluntary_ctxt_switches"] if found["State"].startswith("S") else None

    def _read(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 240
        while not enough():
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 1)[0]:
                self.seen += os.read(self._master, 1 << 16).decode(errors="replace")


@contextmanager
def terminal(*arguments: str | Path) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = spawn("chat", *arguments, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)


def test_ctrl_c_ends_an_answer_keeps_the_turn_and_then_leaves(endless: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    with terminal(endless, "--plain", "--max-tokens", "100000") as chat:
        place = chat.wait_for("/help shows what can be typed")
        place = chat.wait_for("> ", place)
        chat.type("the fox\n")
        place = chat.wait_for("the fox\r\n", place)
        chat.wait_for_more(place + 20)
        chat.process.send_signal(signal.SIGINT)
        place = chat.wait_for("\r\n> ", place)
        chat.type(f"/save {saved}\n")
        place = chat.wait_for(f"wrote {saved}", place)
        place = chat.wait_for("> ", place)
        chat.press_ctrl_c()
        place = chat.wait_for("Ctrl-C again leaves", place)
        chat.wait_for("> ", place)
        chat.press_ctrl_c()
        assert chat.process.wait(timeout=240) == 130
    talk = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    assert [m["role"] for m in talk] == ["user", "assistant"]
    assert len(talk[1]["content"]) > 10
    assert "Traceback" not in chat.seen


def test_errors_do_not_end_a_conversation_and_ctrl_d_does(bundle: Path) -> None:
    with terminal(bundle, "--max-tokens", "5") as chat:
        place = chat.wait_for("> ")
        chat.type("/rest\n")
        place = chat.wait_for("type /reset", place)
        chat.type("/undo\n")
        place = chat.wait_for("there is no turn to take back", place)
        chat.type("the fox\\\nand the dog\n")
        place = chat.wait_for("> ", chat.wait_for("and the dog\r\n", place))
        chat.type("/stats\n")
        place = chat.wait_for("1 turn, ", place)
        chat.type("/reset\n")
        chat.wait_for("> ", chat.wait_for("started over", place))
        chat.settle()
        chat.type("\x04")
        assert chat.process.wait(timeout=240) == 0
    assert "Traceback" not in chat.seen
