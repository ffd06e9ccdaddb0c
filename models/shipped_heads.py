"""Draft heads that come with hexgraft, by name."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "heads"
SMOLLM2_HEAD = "smollm2-135m-instruct"
SMOLLM2_PAIR = "smollm2-135m-instruct-head"
"""The bundle of SmolLM2 and its head in the cache."""


def shipped_head(name: str) -> Path | None:
    """The folder of a head that comes with hexgraft, None if there is none of this name."""
    return _FOLDER / name if name in shipped_heads() else None


def shipped_heads() -> list[str]:
    """Names of the heads that come with hexgraft."""
    return sorted(folder.name for folder in _FOLDER.glob("*") if (folder / "config.json").is_file())
