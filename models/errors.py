"""The errors every room raises: one clear sentence, what to type next, and the exit code it ends in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TypeVar

Failure = TypeVar("Failure", bound="HexgraftError")

OK = 0
FAILED = 1
USAGE = 2
CONNECTION_LOST = 3
NO_DEVICE = 4
INTERRUPTED = 130


class HexgraftError(Exception):
    """A failure a user can act on. Library code raises it; only the command line prints it and exits.

    `message` says what is wrong and where, in one sentence without a final period; `hint` says what to type
    or change next. `details` are the lines of a list that belongs to the message.
    """

    exit_code = FAILED

    def __init__(self, message: str, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = tuple(details)


def mistyped(error: Failure) -> Failure:
    """The same error as one of usage: what was typed names nothing that there is."""
    error.exit_code = USAGE
    return error


def look_at(path: Path) -> str:
    """The hint where the system refuses `path`: its own rights or those of its folder say why."""
    return f"see `ls -ld {quote(str(path.parent))} {quote(str(path))}`, and make it readable with chmod"


class Interrupted(HexgraftError):
    """Ctrl-C, where there is more to say than that: what was done is not lost."""

    exit_code = INTERRUPTED

    def __init__(self, hint: str) -> None:
        super().__init__("interrupted", hint)


class CheckpointError(HexgraftError):
    """A checkpoint that is missing, damaged, or of a kind hexgraft does not know."""


class DamagedError(CheckpointError):
    """A file of a checkpoint that contradicts itself or another one of the same model."""

    def __init__(self, message: str, hint: str = "download it again", details: Sequence[str] = ()) -> None:
        super().__init__(message, hint, details)


class UnsupportedError(CheckpointError):
    """A checkpoint that asks for what hexgraft does not compute."""

    def __init__(
        self,
        message: str,
        hint: str = "`hexgraft models` lists what is supported",
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint, details)


class BundleError(HexgraftError):
    """A bundle that is missing, altered, of another version, or inconsistent in itself."""


class ExportError(HexgraftError):
    """An export that could not be finished; nothing stands at the final name."""


class DecodeError(HexgraftError):
    """A request the decode loop or a session cannot carry out."""


class UsageError(HexgraftError):
    """Arguments that contradict one another or the bundle they are used with."""

    exit_code = USAGE
