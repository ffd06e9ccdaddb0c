"""What the command line shows: results on stdout, everything else on stderr, progress only on a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TextIO

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from hexgraft.host.cli.table import WIDE

_HEIGHT = 25
"""Of what is no terminal: rich looks for a terminal's width unless it is given both."""

Advance = Callable[[int], None]


def stderr() -> Console:
    return _console(sys.stderr)


def stdout() -> Console:
    return _console(sys.stdout)


def _console(stream: TextIO) -> Console:
    """As wide as its terminal, and as what is printed needs where it has none: what reads a file or a pipe
    has no width, and breaks lines itself if it breaks them at all."""
    system: Literal["auto"] | None = "auto" if _styles() else None
    if stream.isatty():
        width = height = None
        if _dumb():  # rich takes 80 columns there, without a look
            width, height = os.get_terminal_size(stream.fileno())
            asked = os.environ.get("COLUMNS", "")
            width = int(asked) if asked.isdecimal() else width
        return Console(
            file=stream, highlight=False, color_system=system, width=width or None, height=height or None
        )
    return Console(file=stream, highlight=False, color_system=system, width=WIDE, height=_HEIGHT)


def streams_meet() -> bool:
    """Whether stdout and stderr are one terminal, one file or one pipe, so that what goes to both mixes."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # one is closed, or none of the system's
        return False


def _styles() -> bool:
    """Whether a terminal is to have colours and bold type: https://no-color.org."""
    return not os.environ.get("NO_COLOR") and not _dumb()


def _dumb() -> bool:
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


def coloured(text: str, colour: str, *, bold: bool = False) -> str:
    """For click.echo, which takes colours out again where the stream is no terminal."""
    return click.style(text, fg=colour, bold=bold or None) if _styles() else text


def visible(text: str) -> str:
    """Text out of files, without what would move a terminal's cursor or colour it."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def say(message: str) -> None:
    """A line about what is going on, on stderr."""
    click.echo(message, err=True)


def say_error(message: str, hint: str | None, details: Sequence[str] = ()) -> None:
    """The one form errors have: two lines with an empty one between them, whatever a file is called, and a
    list below the first where it has `details`."""
    click.echo(coloured("error: ", "red", bold=True) + _line(message), err=True)
    for detail in details:
        click.echo("  " + _line(detail), err=True)
    if hint:
        click.echo("\n" + coloured("hint: ", "cyan", bold=True) + _line(hint), err=True)


def _line(text: str) -> str:
    return visible(text.strip().replace("\n", "\ufffd"))


def print_json(value: Any, *, in_a_line: bool = False) -> None:
    text = json.dumps(value, indent=None if in_a_line else 1, ensure_ascii=False, allow_nan=False)
    # What in a path is no UTF-8 is escaped, so that all of it is.
    click.echo(re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text))


@contextmanager
def bytes_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for bytes; the callback takes (what, done, total) and starts a new bar for a new
    `what`."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr(), disable=not sys.stderr.isatty()) as progress:
        tasks: dict[str, Any] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield update


@contextmanager
def token_progress(what: str, total: int | None) -> Iterator[Advance]:
    """A progress bar for tokens, gone when it is done; without an end where `total` is None."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=stderr(), disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
