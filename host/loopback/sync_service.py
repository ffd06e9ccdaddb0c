"""The device's file service: stat, list, send and receive, in the first and second versions of each request.

Facts from AOSP's packages/modules/adb (SYNC.TXT, file_sync_service.cpp): an existing file is unlinked before
it is written, user permission bits are copied to group and others, after an error the data is drained. What
did not arrive whole is unlinked, so that a broken push leaves nothing to go on from.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

from hexgraft.host.loopback.faults import Faults
from hexgraft.host.loopback.sandbox import Sandbox
from hexgraft.host.loopback.transport import LinkClosed, Stream

_PATH_LIMIT = 1024
_CHUNK = 64 << 10
_STAT_V2 = struct.Struct("<4sIQQIIIIQqqq")
_DENT_V2 = struct.Struct("<4sIQQIIIIQqqqI")


class SyncService:
    """One sync stream: requests until QUIT."""

    def __init__(self, sandbox: Sandbox, faults: Faults, stream: Stream) -> None:
        self._sandbox = sandbox
        self._faults = faults
        self._stream = stream

    def serve(self) -> None:
        try:
            while True:
                name, length = self._header()
                if name == b"QUIT":
                    return
                if length > _PATH_LIMIT:
                    return self._fail("path too long")
                self._answer(name, self._stream.read_exactly(length).decode("utf-8", "surrogateescape"))
        except LinkClosed:
            return

    def _answer(self, name: bytes, path: str) -> None:
        where = self._sandbox.path(path)
        if name == b"STAT":
            self._stat_v1(where)
        elif name in (b"STA2", b"LST2"):
            self._stream.write(_stat_v2(name, where, follow=name == b"STA2"))
        elif name in (b"LIST", b"LIS2"):
            self._list(where, second=name == b"LIS2")
        elif name == b"SEND":
            path, _, mode = path.rpartition(",")
            self._receive(self._sandbox.path(path), int(mode))
        elif name == b"SND2":
            _, mode, flags = struct.unpack("<4sII", self._stream.read_exactly(12))
            self._receive(where, mode, refuse="compression is not supported" if flags & 0xFF else "")
        elif name in (b"RECV", b"RCV2"):
            flags = struct.unpack("<4sI", self._stream.read_exactly(8))[1] if name == b"RCV2" else 0
            self._send(where) if not flags else self._fail("compression is not supported")
        else:
            self._fail(f"unknown request {name!r}")
            raise LinkClosed("unknown sync request")

    def _header(self) -> tuple[bytes, int]:
        name, length = struct.unpack("<4sI", self._stream.read_exactly(8))
        return name, length

    def _fail(self, reason: str) -> None:
        text = reason.encode()
        self._stream.write(b"FAIL" + struct.pack("<I", len(text)) + text)

    def _stat_v1(self, where: Path) -> None:
        try:
            found = where.lstat()
            answer = (found.st_mode, found.st_size & 0xFFFFFFFF, int(found.st_mtime))
        except OSError:
            answer = (0, 0, 0)
        self._stream.write(struct.pack("<4sIII", b"STAT", *answer))

    def _list(self, where: Path, *, second: bool) -> None:
        out = bytearray()
        try:
            entries = sorted(os.scandir(where), key=lambda entry: entry.name)
        except OSError:
            entries = []
        for entry in entries:
            name = os.fsencode(entry.name)
            found = entry.stat(follow_symlinks=False)
            if second:
                out += _DENT_V2.pack(b"DNT2", *_figures(found), len(name)) + name
            else:
                size, time = found.st_size & 0xFFFFFFFF, int(found.st_mtime)
                out += struct.pack("<4sIIII", b"DENT", found.st_mode, size, time, len(name)) + name
        done = struct.pack("<4s", b"DONE") + bytes(_DENT_V2.size - 4 if second else 16)
        self._stream.write(bytes(out) + done)

    def _receive(self, where: Path, mode: int, refuse: str = "") -> None:
        """Take a file's DATA packets until DONE, whatever happens to the file meanwhile."""
        reason = refuse
        file = -1
        if not reason:
            try:
                file = self._create(where, mode)
            except OSError as error:
                reason = f"couldn't create file: {error.strerror}"
        try:
            reason = self._take_data(file, reason)
        except BaseException:
            reason = reason or "interrupted"
            raise
        finally:
            if file >= 0:
                os.close(file)
                if reason:
                    where.unlink(missing_ok=True)
        if reason:
            return self._fail(reason)
        self._stream.write(b"OKAY" + bytes(4))

    def _take_data(self, file: int, reason: str) -> str:
        """Write DATA packets until DONE unless something is wrong already; what is wrong, or nothing."""
        room = self._room()
        written = 0
        while True:
            name, length = self._header()
            if name == b"DONE":
                break
            if name != b"DATA" or length > _CHUNK:
                raise LinkClosed("neither DATA nor DONE")
            data = self._stream.read_exactly(length)
            if not reason:
                reason = self._write(file, data, written, room)
                written += len(data)
        if not reason:
            os.utime(file, (length, length))
        return reason

    def _create(self, where: Path, mode: int) -> int:
        where.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(mode) or where.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        where.unlink(missing_ok=True)
        mode &= 0o777
        mode |= (mode >> 3 & 0o070) | (mode >> 3 & 0o007) | (mode >> 6 & 0o007)
        if self._faults.strip_exec or self._faults.noexec:
            mode &= ~0o111
        file = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(file, mode)
        return file

    def _room(self) -> int | None:
        return None if self._faults.space is None else self._faults.space - self._sandbox.used()

    def _write(self, file: int, data: bytes, at: int, room: int | None) -> str:
        """Write one piece; what went wrong, or an empty string."""
        if room is not None and at + len(data) > room:
            os.write(file, data[: max(0, room - at)])
            return "couldn't write to file: No space left on device"
        spot = self._faults.corrupt
        if spot is not None and at <= spot < at + len(data):
            self._faults.corrupt = None
            data = data[: spot - at] + bytes([data[spot - at] ^ 1]) + data[spot - at + 1 :]
        os.write(file, data)
        return ""

    def _send(self, where: Path) -> None:
        try:
            with where.open("rb") as file:
                while data := file.read(_CHUNK):
                    self._stream.write(b"DATA" + struct.pack("<I", len(data)) + data)
        except OSError as error:
            return self._fail(f"open failed: {error.strerror}")
        self._stream.write(b"DONE" + bytes(4))


def _figures(found: os.stat_result) -> tuple[int, ...]:
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid)
    return (0, found.st_dev, found.st_ino, *owner, found.st_size, *times)


def _stat_v2(name: bytes, where: Path, *, follow: bool) -> bytes:
    try:
        return _STAT_V2.pack(name, *_figures(where.stat() if follow else where.lstat()))
    except OSError as error:
        return _STAT_V2.pack(name, error.errno or errno.EIO, *([0] * 10))
