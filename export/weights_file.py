"""A big file written front to back by a thread of its own, and hashed on the way."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

_CHUNK = 8 << 20


class WeightsFile:
    """`size` bytes at `path`, reserved at once, so that a full disk fails at once.

    `start` > 0 keeps that much of a file that exists. One block is on its way at a time: an array that was
    given to `write` may be changed again only after the next `write` or `sync`. Raises OSError.
    """

    def __init__(self, path: Path, size: int, start: int = 0) -> None:
        self._stream = path.open("r+b" if start else "w+b", buffering=0)
        self._worker = ThreadPoolExecutor(1, "weights")
        self._pending: Future[None] | None = None
        self._digest = hashlib.sha256()
        self._size, self._end = size, 0
        try:
            os.posix_fallocate(self._stream.fileno(), 0, size)
            self._keep(start)
        except BaseException:
            self.close()
            raise

    def write(self, block: NDArray[np.float32], offset: int) -> None:
        """Put a block at an offset not before the end of what was written; zeros fill the gap."""
        self._wait()
        self._pending = self._worker.submit(self._write, np.ascontiguousarray(block), offset)

    def sync(self) -> None:
        """Have everything written so far reach the disk."""
        self._wait()
        os.fdatasync(self._stream.fileno())

    def digest(self) -> str:
        """Hex sha256 of the whole file, once all of it is written."""
        self._wait()
        self._pad(self._size)
        return self._digest.hexdigest()

    def close(self) -> None:
        self._worker.shutdown()
        self._stream.close()

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep(self, count: int) -> None:
        while self._end < count:
            data = os.pread(self._stream.fileno(), min(_CHUNK, count - self._end), self._end)
            self._digest.update(data)
            self._end += len(data)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _write(self, block: NDArray[np.float32], offset: int) -> None:
        self._pad(offset)
        data = block.data.cast("B")
        while data:
            written = os.pwrite(self._stream.fileno(), data, self._end)
            self._digest.update(data[:written])
            data = data[written:]
            self._end += written

    def _pad(self, offset: int) -> None:
        """Reserved space reads as zeros: a gap only has to be hashed."""
        self._digest.update(bytes(offset - self._end))
        self._end = offset
