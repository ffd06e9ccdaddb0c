"""Text that a user gives: prompts, system messages and corpora, in files or typed."""

from __future__ import annotations

from pathlib import Path

from hexgraft.models.errors import UsageError

TEXT_LIMIT = 16 << 20
"""Bytes of a prompt, a system message or a corpus; far beyond any context."""
PROMPTS_LIMIT = 1 << 30
"""Bytes of a file of prompts, which a training may have many of."""


def read_text(file: Path, what: str, limit: int = TEXT_LIMIT) -> str:
    """A UTF-8 text file; raises UsageError for one that cannot be read or is larger than `limit`."""
    try:
        with file.open("rb") as stream:
            raw = stream.read(limit + 1)
    except OSError as error:
        raise UsageError(
            f"cannot read {file}: {error.strerror}", f"name a text file with the {what}"
        ) from error
    return decode_text(raw, f"the {what} in {file}", limit)


def read_prompts(file: Path) -> list[str]:
    """A user's file of prompts, one a line. Raises UsageError if there is none."""
    lines = read_text(file, "list of prompts, one a line", PROMPTS_LIMIT).splitlines()
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise UsageError(f"{file} holds no prompts", "write one prompt a line")
    return prompts


def decode_text(raw: bytes, what: str, limit: int = TEXT_LIMIT) -> str:
    if len(raw) > limit:
        raise UsageError(f"{what} has more than {limit >> 20} MB", "shorten it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{what} is not UTF-8 text: {error.reason} at byte {error.start}",
            "iconv -t UTF-8 converts a file",
        ) from error
