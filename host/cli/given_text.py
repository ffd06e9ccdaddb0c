"""Text that a user gives: prompts, system messages and corpora, in files or typed."""

from __future__ import annotations

from pathlib import Path

from hexgraft.models.errors import UsageError

TEXT_LIMIT = 16 << 20
"""Bytes of a prompt, a system message or a corpus; far beyond any context."""


def read_text(file: Path, what: str) -> str:
    """A UTF-8 text file; raises UsageError for one that cannot be read or is larger than TEXT_LIMIT."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(TEXT_LIMIT + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", f"name a text file with the {what}"
        ) from error
    return decode_text(raw, f"the {what} in {file}")


def decode_text(raw: bytes, what: str) -> str:
    if len(raw) > TEXT_LIMIT:
        raise UsageError(f"{what} has more than {TEXT_LIMIT >> 20} MB", "shorten it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{what} is not UTF-8 text: {error.reason} at byte {error.start}",
            "iconv -t UTF-8 converts a file",
        ) from error
