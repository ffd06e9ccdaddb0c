"""A fixed conversation with a runner, recorded once with the C++ protocol code, and held against both sides.

`python tests/device/conversation.py` records it anew (after a change of the protocol) from build/device's
fake-runner, a runner whose model makes small exact numbers of its inputs.
"""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from hexgraft.host.logits import NotFinite
from hexgraft.host.runner.connection import RunnerConnection
from hexgraft.host.runner.session import RunnerSession
from hexgraft.host.session import Visibility, causal, tree_visibility
from hexgraft.models.errors import BundleError

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
FAKE_RUNNER = ROOT / "build" / "device" / "linux-x86_64" / "fake-runner"

REFUSED = {
    "empty": b"",
    "not-a-map": b"\x01",
    "array": b"\x92\x01\x02",
    "number-as-key": b"\x81\x01\x01",
    "never-used-byte": b"\x81\xa1a\xc1",
    "extension": b"\x81\xa1a\xd4\x01\x00",
    "four-billion-elements": b"\x82\xa2id\x01\xa3ops\xdd\xff\xff\xff\xff",
    "four-billion-pairs": b"\xdf\xff\xff\xff\xff",
    "four-billion-bytes": b"\x81\xa1a\xc6\xff\xff\xff\xff\x00",
    "cut-short": b"\x82\xa2id\x01\xa3ops\x91\x81\xa2op\xa5st",
    "trailing-byte": b"\x82\xa2id\x01\xa3ops\x90\x00",
    "deep": b"\x82\xa2id\x01\xa3ops" + b"\x91" * 5000 + b"\x01",
    "bad-utf8": b"\x82\xa2id\x01\xa3ops\x91\x81\xa2op\xa2\xc3(",
    "surrogate": b"\x82\xa2id\x01\xa3ops\x91\x81\xa2op\xa3\xed\xa0\x80",
    "no-id": b"\x81\xa3ops\x90",
    "negative-id": b"\x82\xa2id\xff\xa3ops\x90",
    "float-id": b"\x82\xa2id\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\xa3ops\x90",
    "ops-not-an-array": b"\x82\xa2id\x01\xa3ops\x80",
    "unknown-key": b"\x83\xa2id\x01\xa3ops\x90\xa1x\x01",
}
"""Messages no runner may accept, by what is wrong with them."""


def fake_logits(token: int, visible: int) -> Any:
    """What the fake model computes of a token that sees `visible` columns, itself included: [300] float32."""
    return ((np.arange(300) * 17 + token * 7 + visible * 3) % 101 / 8).astype(np.float32)


def converse(connection: RunnerConnection) -> list[Any]:
    """Every operation once or more, in a fixed order; returns what came back."""
    got: list[Any] = []
    session = RunnerSession(connection, "fake", threads=1)
    rows = session.forward([5, 6, 7], [0, 1, 2], causal(0, 3))
    got += [rows.topk(3, log_sum=False), rows.logits(1), rows.hidden(2)]
    session.store([0, 1, 2], [0, 1, 2])

    #      0 1 2     root 0, children 1 and 2
    tree = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)
    rows = session.forward([9, 10, 11], [3, 4, 4], tree_visibility(3, tree))
    got += [rows.topk(2, [1], log_sum=False), rows.topk(1, [2], log_sum=False)]
    session.store([0, 1, 2], [3, 10, 12])
    seen = np.array([[True, False], [False, True]])
    rows = session.forward(
        [20, 21], [5, 5], Visibility(4, np.eye(2, dtype=np.bool_), np.array([10, 12]), seen)
    )
    got += [rows.topk(1, log_sum=False)]
    session.move([12], [4])
    got += [session.save(5)]

    session.forward([1, 2, 299], [5, 6, 6], tree_visibility(5, tree))
    rows = session.forward([1, 2, 299], [5, 6, 6], tree_visibility(5, tree))
    got += [rows.topk(1, [0], log_sum=False), _caught(lambda: rows.topk(1, [2], log_sum=False))]
    session.reset()
    session.restore(got[6])
    got += [session.save(5)]

    draft = RunnerSession(connection, "fake", "draft", widths=[1, 4, 8], whole=True)
    rows = draft.forward([5, 6], [0, 1], causal(0, 2))
    got += [(rows.count, rows.width, rows.seconds), draft.spec, rows.logits(1)]
    got += [_caught(lambda: RunnerSession(connection, "missing", "draft"))]
    session.close()
    connection.close()
    return got


def _caught(action: Any) -> Exception | None:
    try:
        action()
    except (NotFinite, BundleError) as error:
        return error
    return None


class Recorder:
    """A stream to a process that keeps a copy of every frame in both directions."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self._got = b""

    def write(self, data: bytes) -> int:
        self.requests.append(data[4:])
        assert self.process.stdin is not None
        return self.process.stdin.write(data)

    def flush(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.flush()

    def read(self, count: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(count)
        self._got += data
        size = int.from_bytes(self._got[:4], "little")
        if len(self._got) >= 4 + size:
            self.answers.append(self._got[4:])
            self._got = b""
        return data


class Replay(io.BytesIO):
    """Reads recorded answers, keeps what is asked."""

    def __init__(self, answers: list[bytes]) -> None:
        super().__init__(b"".join(len(answer).to_bytes(4, "little") + answer for answer in answers))
        self.requests: list[bytes] = []

    def write(self, data: Any) -> int:
        self.requests.append(bytes(data[4:]))
        return len(data)


def golden_frames() -> tuple[list[bytes], list[bytes]]:
    """Requests, and answers (hello first), as recorded."""
    folder = GOLDEN / "conversation"
    requests = [file.read_bytes() for file in sorted(folder.glob("*-request.bin"))]
    answers = [file.read_bytes() for file in sorted(folder.glob("*-answer.bin"))]
    return requests, [(folder / "hello.bin").read_bytes(), *answers]


def record() -> None:
    """Write the golden files anew."""
    pipe = subprocess.PIPE
    with subprocess.Popen([FAKE_RUNNER], stdin=pipe, stdout=pipe) as process:
        recorder = Recorder(process)
        converse(RunnerConnection(recorder, recorder))
    for name in ("conversation", "refused"):
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        (GOLDEN / name).mkdir(parents=True)
    hello, *answers = recorder.answers
    (GOLDEN / "conversation" / "hello.bin").write_bytes(hello)
    for i, (request, answer) in enumerate(zip(recorder.requests, answers, strict=True)):
        (GOLDEN / "conversation" / f"{i:02}-request.bin").write_bytes(request)
        (GOLDEN / "conversation" / f"{i:02}-answer.bin").write_bytes(answer)
    for name, message in REFUSED.items():
        (GOLDEN / "refused" / f"{name}.bin").write_bytes(message)
    corpus = ROOT / "device" / "fuzz" / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    framed = [len(request).to_bytes(2, "little") + request for request in recorder.requests]
    (corpus / "conversation").write_bytes(b"".join(framed))
    for i, request in enumerate(framed):
        (corpus / f"request-{i:02}").write_bytes(framed[0] + request)
    for name, message in REFUSED.items():
        (corpus / f"refused-{name}").write_bytes(len(message).to_bytes(2, "little") + message)


if __name__ == "__main__":
    record()
