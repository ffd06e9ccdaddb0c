"""Frames no host would send: the runner answers every one with an error or a result, and lives on."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conversation import REFUSED

from hexgraft.host.bundle import Bundle
from hexgraft.host.runner.local import RUNNER, find_ort
from hexgraft.host.runner.wire import FRAME_LIMIT, Reply, read_frame

NUMBERS = [
    -1,
    0,
    1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    1.5,
    float("nan"),
    float("inf"),
]
VALUES = [*NUMBERS, "", "x" * 5000, b"", b"\xff" * 9, None, True, [], [[]], {}, {"a": 1}, [1] * 5000]
SANITIZER = {
    "ASAN_OPTIONS": "abort_on_error=1:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def requests(place: str) -> list[list[dict[str, Any]]]:
    """Good requests to start from: every operation."""
    m = {"model": "m"}
    forward = {"op": "forward", **m, "tokens": [1, 2, 3], "positions": [0, 1, 1], "prefix": 0}
    bits = b"\x01\x03\x05"
    return [
        [
            {
                "op": "load",
                **m,
                "role": "target",
                "bundle": place,
                "provider": "cpu",
                "widths": [1, 8],
                "threads": 1,
            }
        ],
        [{**forward, "visible": bits, "slots": [9, 12], "seen": b"\x01\x02\x03"}],
        [forward, {"op": "rows", **m, "want": "topk", "k": 3, "rows": [0, 2], "log_sum": True}],
        [
            forward,
            {"op": "rows", **m, "want": "logits", "row": 1},
            {"op": "rows", **m, "want": "hidden", "rows": [0]},
        ],
        [
            forward,
            {"op": "store", **m, "rows": [0, 2], "slots": [0, 1]},
            {"op": "move", **m, "source": [1], "target": [0]},
        ],
        [{"op": "save", **m, "layer": 0, "start": 0, "count": 4}],
        [
            {
                "op": "restore",
                **m,
                "layer": 0,
                "start": 0,
                "count": 1,
                "keys": b"\0" * 128,
                "values": b"\0" * 128,
            }
        ],
        [{"op": "stats"}, {"op": "reset", **m}],
    ]


def mutated(rng: random.Random, seeds: list[list[dict[str, Any]]]) -> bytes:
    """One message: a good request with a field made wrong, or its bytes cut, changed or replaced."""
    operations = [dict(op) for op in rng.choice(seeds)]
    kind = rng.randrange(6)
    if kind == 0:
        operation = rng.choice(operations)
        operation[rng.choice([*operation, "extra"])] = rng.choice(VALUES)
    if kind == 1:
        operation = rng.choice(operations)
        lists = [name for name, value in operation.items() if isinstance(value, list)]
        if lists:
            name = rng.choice(lists)
            operation[name] = [*operation[name], rng.choice(VALUES)]
    message: Any = {"id": 1, "ops": operations}
    if kind == 2:
        message[rng.choice(["id", "ops", "x"])] = rng.choice(VALUES)
    raw = bytearray(msgspec.msgpack.encode(message))
    if kind == 3:
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    if kind == 4:
        at = rng.randrange(len(raw))
        raw[at : at + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
    if kind == 5:
        raw = bytearray(rng.choice([*REFUSED.values(), rng.randbytes(rng.randrange(200))]))
    # A goodbye is no malformed frame.
    return bytes(raw).replace(b"bye", b"bay")


def converse(command: list[str], place: str, count: int, seed: int) -> int:
    """Send `count` malformed frames between good ones; returns the process's exit code."""
    rng = random.Random(seed)
    seeds = requests(place)
    pipe = subprocess.PIPE
    errors = subprocess.DEVNULL if "asan" not in command[0] else None
    environment = os.environ | SANITIZER
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        read_frame(process.stdout)

        def ask(message: bytes) -> Reply:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(len(message).to_bytes(4, "little") + message)
            process.stdin.flush()
            return msgspec.msgpack.decode(read_frame(process.stdout), type=Reply)

        load, forward = (msgspec.msgpack.encode({"id": 7, "ops": operations}) for operations in seeds[:2])
        for number in range(count):
            ask(mutated(rng, seeds))
            if number % 50 == 0:
                assert ask(load).error is None
                assert ask(forward).error is None
        goodbye = ask(msgspec.msgpack.encode({"id": 7, "ops": [{"op": "bye"}]}))
        assert goodbye.error is None
        process.stdin.close()
        return process.wait(timeout=120)


def test_malformed_frames(binary: Path, bundle: Bundle) -> None:
    assert converse([str(binary), "--ort", str(find_ort())], str(bundle.path), 400, 1) == 0


def test_frame_above_the_limit(build: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([build / "fake-runner"], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        read_frame(process.stdout)
        size = FRAME_LIMIT + 1
        process.stdin.write(size.to_bytes(4, "little"))
        for _ in range(size // 65536):
            process.stdin.write(b"\0" * 65536)
        process.stdin.write(b"\0" * (size % 65536))
        stats = msgspec.msgpack.encode({"id": 3, "ops": [{"op": "stats"}]})
        process.stdin.write(len(stats).to_bytes(4, "little") + stats)
        process.stdin.close()
        refused = msgspec.msgpack.decode(read_frame(process.stdout), type=Reply)
        assert refused.error is not None
        assert refused.error.code == "too_large"
        assert msgspec.msgpack.decode(read_frame(process.stdout), type=Reply).error is None


@pytest.mark.slow
def test_ten_thousand_malformed_frames_under_sanitizers(asan_build: Path, bundle: Bundle) -> None:
    """Once over the runtime, once over the fake model, whose process ends in a way that tells leaks."""
    runner = str(asan_build / RUNNER)
    assert converse([runner, "--ort", str(find_ort())], str(bundle.path), 10_000, 2) == 0
    assert converse([str(asan_build / "fake-runner")], "fake", 10_000, 3) == 0
