"""Where downloads and demonstration bundles are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """HEXGRAFT_CACHE, or hexgraft's folder in the user's cache."""
    named = os.environ.get("HEXGRAFT_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hexgraft"
