"""The files that a checkpoint is read from, in a folder, of a split GGUF, or on the hub."""

from __future__ import annotations

from pathlib import Path

from hexgraft.models.gguf_file import parts_of

PATTERNS = ("*.json", "*.jinja", "*.safetensors", "merges.txt", "tokenizer.model", "README.md")
"""Of the files in a model's folder."""
PICKLED = "*.bin"
"""Weights of draft heads alone are read from such."""


def files_of(path: Path) -> list[Path]:
    """A checkpoint's files, those of a folder by name. What else lies in a folder is not read: an export may
    be written there, or a log."""
    if path.is_file():
        return [part for part in parts_of(path) if part.is_file()]
    return [
        file
        for file in sorted(path.iterdir())
        if file.is_file() and any(file.match(pattern) for pattern in (*PATTERNS, PICKLED))
    ]
