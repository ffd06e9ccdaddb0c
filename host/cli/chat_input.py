"""What a user types into `hexgraft chat`: turns at a terminal, or from a script line by line."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from hexgraft.host.given_text import TEXT_LIMIT, decode_text
from hexgraft.models.errors import UsageError

PROMPT = "> "
CONTINUED = ". "


class ChatInput:
    """Reads turns from standard input. A backslash at the end of a line continues the turn on the next."""

    def __init__(self) -> None:
        self.terminal = sys.stdin.isatty()
        self._editing = self.terminal and sys.stdout.isatty()
        if self._editing:
            with suppress(ImportError):  # with it, `input` edits lines and recalls the ones before
                import readline  # noqa: F401

    def read(self) -> str | None:
        """The next turn, None at the end of input."""
        lines: list[str] = []
        while (line := self._line(CONTINUED if lines else PROMPT)) is not None:
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
        return "\n".join(lines) if lines else None

    def _line(self, prompt: str) -> str | None:
        if self._editing:
            try:
                raw = input(prompt).encode("utf-8", "surrogateescape")
            except EOFError:
                return None
            except UnicodeDecodeError as error:
                raise UsageError(
                    "the line is not UTF-8 text", "check the terminal's encoding: locale"
                ) from error
        else:
            if self.terminal:
                click.echo(prompt, nl=False, err=True)
            raw = sys.stdin.buffer.readline(TEXT_LIMIT + 1)
            if not raw:
                return None
        return decode_text(raw, "the line").rstrip("\r\n")
