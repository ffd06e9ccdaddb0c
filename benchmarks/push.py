"""Pushing to a loopback phone: our rate beside that of `adb push`, over links of several speeds."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figure import Figure
from hexgraft.host.adb.errors import NoAdb
from hexgraft.host.adb.phone import Phone, open_phone
from hexgraft.host.adb.push import Pusher
from hexgraft.host.adb.server import Server
from hexgraft.host.adb.store import Folder, Piece, Store
from hexgraft.host.loopback.adb_server import AdbServer

SIZE = 300_000_000
LINKS = {"USB 2": 40e6, "USB 3": 200e6}
"""Bytes a second that such links carry at best."""

REPEATS = 3


def figures() -> Iterator[Figure]:
    try:
        adb = Server().adb
    except NoAdb as error:
        print(f"push: not measured, {error.message}; {error.hint}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch, AdbServer(adb) as server:
        os.environ.update(server.variables)
        file = Path(scratch) / "weights"
        file.write_bytes(os.urandom(SIZE))
        for link, rate in LINKS.items():
            with _phone(server, rate) as phone:
                yield from _compare(f"over {link}", server, phone, file)
        with _phone(server, None) as phone:
            yield from _compare("over loopback alone", server, phone, file)
            yield from _again(phone, file)


@contextmanager
def _phone(server: AdbServer, rate: float | None) -> Iterator[Phone]:
    """A loopback phone in a process of its own, so that it takes no time from what is measured."""
    speed = ["--rate", str(rate / 1e6)] if rate else []
    words = [sys.executable, "-m", "hexgraft.host.cli", "device", "loopback", *speed]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            serial = process.stdout.readline().strip()
            server.connect([serial])
            yield open_phone(serial)
            server.disconnect(serial)
        finally:
            process.terminate()


def _compare(link: str, server: AdbServer, phone: Phone, file: Path) -> Iterator[Figure]:
    """Both ways in turn, the best of each: what disturbs a run makes it slower, never faster."""
    folder, theirs, ours = _folder(file), [], []
    for _ in range(1 if "USB 2" in link else REPEATS):
        theirs.append(_seconds(lambda: server.run("push", str(file), "/data/local/tmp/plain")))
        phone.run("rm -f /data/local/tmp/plain")
        store = Store(phone)
        ours.append(_seconds(lambda: Pusher(phone).push(folder)))
        store.remove(store.present())
    yield Figure(f"push: adb push {link}", SIZE / min(theirs) / 1e6, "MB/s")
    yield Figure(f"push: hexgraft {link}, sha256 on the phone included", SIZE / min(ours) / 1e6, "MB/s")
    goal = ">= 0.8" if "USB" in link else ""
    yield Figure(f"push: hexgraft {link}, of adb push", min(theirs) / min(ours), "", goal)


def _again(phone: Phone, file: Path) -> Iterator[Figure]:
    folder = _folder(file)
    Pusher(phone).push(folder)
    yield Figure("push: the same once more", _seconds(lambda: Pusher(phone).push(folder)), "s", "<= 2")


def _folder(file: Path) -> Folder:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return Folder("bundles", digest, {"weights": Piece(file, SIZE, digest)})


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
