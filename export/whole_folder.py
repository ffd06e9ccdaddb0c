"""A folder that appears under its name only when it is whole."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from hexgraft.export.resume import Finished
from hexgraft.host.atomic_file import FULL
from hexgraft.models.errors import ExportError, mistyped


@contextmanager
def whole_folder(path: Path, finished: Finished | None = None) -> Iterator[Path]:
    """A folder to write into, renamed to `path` when the block ends well and removed when it does not.

    What a killed export of the same identity left behind is gone on with; without `finished` the folder is
    empty.
    """
    if not path.name:  # ".", which is what an empty text becomes, or "/"
        raise mistyped(ExportError(f"{path} is no name for a new folder", "example: -o bundle"))
    if path.exists() or path.is_symlink():
        raise _exists(path)
    parent = path.resolve().parent
    if not parent.is_dir():
        raise mistyped(ExportError(f"the folder {parent} does not exist", f"mkdir -p {quote(str(parent))}"))
    partial = parent / f".{path.name}.partial-{os.getpid()}"
    _sweep(parent, path.name, finished, partial)
    try:
        partial.mkdir(exist_ok=True)
        if finished is not None:
            finished.begin(partial)
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                _sync(file)
        partial.rename(parent / path.name)
        _sync(parent)
    except OSError as error:
        if error.errno in FULL:
            raise ExportError(
                f"no space left for the bundle in {parent}",
                f"see `df -h {quote(str(parent))}`; free some, or name another disk with -o",
            ) from error
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) and path.exists():
            raise _exists(path) from error  # since this export began: another one was quicker
        raise ExportError(
            f"cannot write the bundle in {parent}: {error.strerror or error}",
            f"see `ls -ld {quote(str(parent))}`, or name another folder with -o",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _exists(path: Path) -> ExportError:
    hint = "choose another name"
    if not Path.cwd().is_relative_to(path.resolve()):
        hint += f", or remove it: rm -r {quote(str(path))}"
    return ExportError(f"{path} exists already", hint)


def _sweep(parent: Path, name: str, finished: Finished | None, own: Path) -> None:
    """Remove what exports to this name left behind when they were killed, but for one to go on with."""
    # In containers every export may be process 1: what bears our number need not be of our kind.
    if finished is None or not finished.fits(own):
        shutil.rmtree(own, ignore_errors=True)
    for leftover in parent.glob(f".{glob.escape(name)}.partial-*"):
        pid = leftover.name.rpartition("-")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            if finished is not None and finished.fits(leftover) and not own.exists():
                leftover.rename(own)
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
