"""What the command line shows: results on stdout, everything else on stderr, progress only on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

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

Advance = Callable[[int], None]


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


def stdout() -> Console:
    return Console(highlight=False)


def visible(text: str) -> str:
    """Text out of files, without what would move a terminal's cursor or colour it."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def say(message: str) -> None:
    """A line about what is going on, on stderr."""
    click.echo(message, err=True)


def say_error(message: str, hint: str | None, details: Sequence[str] = ()) -> None:
    """The one form errors have: two lines with an empty one between them, whatever a file is called, and a
    list below the first where it has `details`."""
    click.echo(click.style("error: ", fg="red", bold=True) + _line(message), err=True)
    for detail in details:
        click.echo("  " + _line(detail), err=True)
    if hint:
        click.echo("\n" + click.style("hint: ", fg="cyan", bold=True) + _line(hint), err=True)


def _line(text: str) -> str:
    return visible(text.strip().replace("\n", "\ufffd"))


def print_json(value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
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
