"""A file that appears at its name only when it is whole."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile

from hexgraft.models.errors import HexgraftError, UsageError, mistyped

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write fails with when there is no space left, or no more is allowed."""


def check_free(path: Path) -> None:
    """Raises HexgraftError if something stands at `path`, if it has no folder to stand in, or if the system
    does not say."""
    try:
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        taken = path.exists() or path.is_symlink()
    except OSError as error:
        raise cannot_write(path, error) from error
    if taken:
        name = quote(str(path))
        raise HexgraftError(f"{path} exists already", f"choose another name, or remove it: rm {name}")


def check_place(path: Path, option: str, example: str) -> None:
    """Raises HexgraftError, before minutes are spent on a file, if none can be made at the `path` that
    `option` names. `example` is a name for one in a folder."""
    if not path.parent.is_dir():
        folder = quote(str(path.parent))
        raise UsageError(f"the folder of {option} {path} does not exist", f"mkdir -p {folder}")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder", f"example: {option} {path / example}")
    try:
        try_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error


def try_folder(folder: Path) -> None:
    """OSError if no file can be made in `folder`. Nothing stays there."""
    with TemporaryFile(dir=folder):
        pass


def check_replaced(path: Path, start: bytes, kind: str, option: str) -> None:
    """Raises UsageError if a file stands at `path` that does not begin with `start`, as every `kind` does:
    what `option` names may replace an older one, and nothing else. OSError if it cannot be read."""
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as stream:
        if stream.read(len(start)) != start:
            raise UsageError(
                f"{path} exists already and is no {kind}", f"choose another name for {option}, or remove it"
            )


def write_whole(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write `data` to `path` by way of a neighbour. Raises HexgraftError when the file exists already and
    may not be replaced, or cannot be written; then nothing changed at `path`."""
    if not replace:
        check_free(path)
    partial = path.parent / f".{path.name}.partial-{os.getpid()}"
    try:
        with partial.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def cannot_write(path: Path, error: OSError) -> HexgraftError:
    """What went wrong with writing `path`, in words."""
    parent = path.parent
    folder = quote(str(parent))
    if error.errno in FULL:
        return HexgraftError(
            f"no space left for {path}", f"see `df -h {folder}`; free some, or name another disk"
        )
    if error.errno == errno.ENOENT:
        return mistyped(HexgraftError(f"the folder {parent} does not exist", f"mkdir -p {folder}"))
    reason = error.strerror or str(error)
    if error.errno == errno.ENAMETOOLONG:
        return HexgraftError(f"cannot write {path}: {reason}", "choose a shorter name")
    return HexgraftError(f"cannot write {path}: {reason}", f"see `ls -ld {folder}`, or name another folder")
