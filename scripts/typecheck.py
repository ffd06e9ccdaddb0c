"""Runs mypy --strict over the packages under the names they are imported by.

The folders models/, export/ and host/ install as hexgraft.models and so on, which no type checker can see
from the folders alone; a git-ignored tree of links gives them those names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("models", "export", "host")


def link(tree: Path) -> None:
    """Make `tree`/hexgraft with one link a room, replacing links that point elsewhere."""
    package = tree / "hexgraft"
    package.mkdir(parents=True, exist_ok=True)
    for room in ROOMS:
        place = package / room
        if place.is_symlink() and place.resolve() == ROOT / room:
            continue
        place.unlink(missing_ok=True)
        place.symlink_to(ROOT / room, target_is_directory=True)


def check(tree: Path, *what: str) -> int:
    """mypy's exit code for `what`, files or a `--package`, with the packages found in `tree`."""
    command = [sys.executable, "-m", "mypy", "--strict", *what]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"MYPYPATH": str(tree)}).returncode


def main() -> int:
    tree = ROOT / "build" / "types"
    link(tree)
    scripts = sorted(str(file) for file in (ROOT / "scripts").glob("*.py"))
    return check(tree, "--package", "hexgraft") | check(tree, *scripts)


if __name__ == "__main__":
    sys.exit(main())
