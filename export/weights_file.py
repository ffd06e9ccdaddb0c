"""A big file written front to back by threads of its own, and hashed on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CHUNK = 8 << 20
DEPTH = 2
"""Blocks on their way at a time: with a single one, of unequal sizes, its writer, its hasher and whoever
makes the next would wait for one another."""

CACHED = 2 << 30
"""Files beyond this do not stay in the system's cache. Making room there takes longer than writing does
(12 GB on a machine of 24 GB: 20 s instead of 5), and throws out what others need."""


class WeightsFile:
    """`size` bytes at `path`, reserved at once, so that a full disk fails at once.

    `start` > 0 keeps that much of a file that exists. Blocks are written by one thread and hashed by another,
    DEPTH of them at a time: an array that was given to `write` may be changed again only after so many more.
    Raises OSError.
    """

    def __init__(self, path: Path, size: int, start: int = 0) -> None:
        self._stream = path.open("r+b" if start else "w+b", buffering=0)
        self._writer, self._hasher = ThreadPoolExecutor(1, "write"), ThreadPoolExecutor(1, "hash")
        self._syncer = ThreadPoolExecutor(1, "sync")
        self._pending: list[tuple[Future[None], Future[None]]] = []
        self._syncing: Future[None] | None = None
        self._digest = hashlib.sha256()
        self._size, self._hashed, self._written = size, 0, 0
        try:
            os.posix_fallocate(self._stream.fileno(), 0, size)
            self._keep(start)
        except BaseException:
            self.close()
            raise

    def write(self, block: NDArray[Any], offset: int) -> None:
        """Put a block at an offset not before the end of what was written; zeros fill the gap."""
        self._wait(DEPTH - 1)
        data = np.ascontiguousarray(block).data.cast("B")
        self._written = offset + len(data)
        self._pending.append(
            (self._writer.submit(self._write, data, offset), self._hasher.submit(self._hash, data, offset))
        )

    def sync_behind(self, then: Callable[[], None]) -> None:
        """Have everything written so far reach the disk, in a thread that calls `then` at the end; writing
        goes on meanwhile."""
        self._wait_for_sync()
        under_way = [writing for writing, _ in self._pending]
        self._syncing = self._syncer.submit(self._sync, then, self._written, under_way)

    def digest(self) -> str:
        """Hex sha256 of the whole file, once all of it is written."""
        self._wait()
        self._wait_for_sync()
        self._pad(self._size)
        return self._digest.hexdigest()

    def close(self) -> None:
        for thread in (self._writer, self._hasher, self._syncer):
            thread.shutdown()
        self._stream.close()

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, count: int) -> None:
        while self._hashed < count:
            data = os.pread(self._stream.fileno(), min(_CHUNK, count - self._hashed), self._hashed)
            self._digest.update(data)
            self._hashed += len(data)

    def _wait(self, left: int = 0) -> None:
        while len(self._pending) > left:
            for future in self._pending.pop(0):
                future.result()

    def _wait_for_sync(self) -> None:
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()

    def _write(self, data: memoryview, offset: int) -> None:
        while data:
            written = os.pwrite(self._stream.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def _hash(self, data: memoryview, offset: int) -> None:
        self._pad(offset)
        self._digest.update(data)
        self._hashed += len(data)

    def _pad(self, offset: int) -> None:
        """Reserved space reads as zeros: a gap only has to be hashed."""
        self._digest.update(bytes(offset - self._hashed))
        self._hashed = offset

    def _sync(self, then: Callable[[], None], written: int, under_way: list[Future[None]]) -> None:
        for writing in under_way:
            writing.result()
        os.fdatasync(self._stream.fileno())
        then()
        if self._size > CACHED:
            os.posix_fadvise(self._stream.fileno(), 0, written, os.POSIX_FADV_DONTNEED)
