"""Finished stages of a long export, remembered on disk so that an interrupted one goes on where it
stopped."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from hexgraft.models.errors import ExportError

STATE = "stages.json"


class Stages:
    """The stages of one export in `folder`.

    A stage is finished for a key made of everything that went into it; with another key it runs again, and so
    does every stage after it whose key names it. `told` hears of stages that need not run again.
    """

    def __init__(self, folder: Path, told: Callable[[str], None]) -> None:
        self._path = folder / STATE
        self._told = told
        self._here: set[str] = set()
        self._done: dict[str, dict[str, Any]] = {}
        try:
            self._done = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            pass
        except ValueError:
            pass  # cut short by a crash: the stages run again

    def run(
        self, name: str, key: Any, work: Callable[[], Any], whole: Callable[[Any], bool] | None = None
    ) -> Any:
        """What `work` returned, now or when the stage was finished; JSON values only. `whole` tells whether
        the files a finished stage left are still there."""
        if self.finished(name, key, whole):
            if name not in self._here:
                self._told(name)
            return self._done[name]["result"]
        self._forget(name)
        result = work()
        self._here.add(name)
        self._done[name] = {"key": _digest(key), "result": result}
        self._save()
        return result

    def finished(self, name: str, key: Any, whole: Callable[[Any], bool] | None = None) -> bool:
        """Whether `run` would have nothing to do."""
        known = self._done.get(name)
        return (
            known is not None and known["key"] == _digest(key) and (whole is None or whole(known["result"]))
        )

    def _forget(self, name: str) -> None:
        if self._done.pop(name, None) is not None:
            self._save()

    def _save(self) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as stream:
            json.dump(self._done, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self._path)


def _digest(key: Any) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


@contextmanager
def unfinished_folder(output: Path) -> Iterator[Path]:
    """The folder an export to `output` works in, kept between runs if something was finished in it; only one
    process may use it at a time."""
    parent = output.resolve().parent
    if output.exists() or output.is_symlink():
        raise ExportError(
            f"{output} exists already", f"choose another name, or remove it: rm -r {quote(str(output))}"
        )
    if not parent.is_dir():
        raise ExportError(f"the folder {parent} does not exist", f"mkdir -p {quote(str(parent))}")
    folder = parent / f".{output.name}.unfinished"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportError(
                f"another export to {output} is running", "wait for it, or choose another name"
            ) from None
        try:
            yield folder
        except BaseException:
            if not (folder / STATE).exists():  # nothing that the next run could go on from
                shutil.rmtree(folder, ignore_errors=True)
            raise
