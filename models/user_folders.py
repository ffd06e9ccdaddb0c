"""The folders of this user where hexgraft keeps things between runs."""

from __future__ import annotations

import os
from pathlib import Path

from hexgraft.models.errors import UsageError


def cache_folder() -> Path:
    """Of downloads and demonstration bundles: HEXGRAFT_CACHE, or hexgraft's folder in the user's cache."""
    return _folder("CACHE", ".cache")


def state_folder() -> Path:
    """Of what was chosen here: HEXGRAFT_STATE, or hexgraft's folder in the user's state."""
    return _folder("STATE", ".local/state")


def _folder(kind: str, below_home: str) -> Path:
    named, base = os.environ.get(f"HEXGRAFT_{kind}"), os.environ.get(f"XDG_{kind}_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(base) if base else Path.home() / below_home) / "hexgraft"
    except RuntimeError as error:
        raise UsageError(
            f"there is no home folder for {named or 'this user'}",
            f"export HEXGRAFT_{kind}=FOLDER, by its whole path",
        ) from error
