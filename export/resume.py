"""What a killed export had finished, so that the next one to the same name goes on there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hexgraft.models.checkpoint import Checkpoint
from hexgraft.models.checkpoint_files import files_of
from hexgraft.models.head_checkpoint import HeadCheckpoint

STATE = "export.state"


class Finished:
    """How many weights of each model have reached the disk; kept in a file of the unfinished folder.

    `identity` tells exports apart: what a folder of another identity holds is worth nothing to this one.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.counts: dict[str, int] = {}
        self._file: Path | None = None

    def begin(self, folder: Path) -> None:
        """Go on in a folder that `fits`, or begin in another."""
        self._file = folder / STATE
        self.counts = _read(self._file)["counts"] if self.fits(folder) else {}
        self._write()

    def mark(self, role: str, count: int) -> None:
        """The first `count` weights of a model are on the disk."""
        self.counts[role] = count
        self._write()

    def end(self) -> None:
        """Take the file away: the folder is whole."""
        if self._file is not None:
            self._file.unlink()

    def fits(self, folder: Path) -> bool:
        """Whether an export of this identity was at work in a folder."""
        return _read(folder / STATE).get("identity") == self.identity

    def _write(self) -> None:
        if self._file is not None:
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps({"identity": self.identity, "counts": self.counts}))
            fresh.replace(self._file)


def export_identity(target: Checkpoint, draft: Checkpoint | HeadCheckpoint | None, options: Any) -> str:
    """sha256 over the checkpoints' files by size and time, and what was asked for."""
    facts: list[Any] = [repr(options)]
    models: list[Checkpoint | HeadCheckpoint] = [target, draft] if draft else [target]
    for checkpoint in models:
        facts += checkpoint_facts(checkpoint.path)
        facts.append(repr(checkpoint.config))
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def checkpoint_facts(path: Path) -> list[list[Any]]:
    """Path, size and time of the files that a checkpoint is read from."""
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files_of(path)]


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("counts"), dict) else {}
