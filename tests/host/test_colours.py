"""Colours: on a terminal, unless NO_COLOR or TERM say otherwise, and nowhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from pathlib import Path

import pytest
from command import at_terminal, hexgraft

from hexgraft.host.cli.console import stdout

FAILS = ("run", "nosuch", "-p", "hi")


def commands(traces: dict[str, Path]) -> dict[str, tuple[str | Path, ...]]:
    """One of each kind that has colours: errors, what rich prints, and lines of their own."""
    return {"errors": FAILS, "trees": ("tree", traces["levels"], "--round", "1"), "checks": ("doctor",)}


@pytest.mark.parametrize("kind", ["errors", "trees", "checks"])
def test_a_terminal_has_colours_unless_it_is_told_to_have_none(traces: dict[str, Path], kind: str) -> None:
    words = commands(traces)[kind]
    assert "\x1b[" in at_terminal(*words)[0]
    for plain in ({"NO_COLOR": "1"}, {"NO_COLOR": "no"}, {"TERM": "dumb"}):
        shown, _ = at_terminal(*words, **plain)
        assert shown
        assert "\x1b" not in shown


def test_a_dumb_terminal_is_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 132, 0, 0))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("COLUMNS", raising=False)
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert stdout().width == 132
        monkeypatch.setenv("COLUMNS", "60")
        assert stdout().width == 60


@pytest.mark.parametrize("kind", ["errors", "trees", "checks"])
def test_what_is_no_terminal_has_none(traces: dict[str, Path], kind: str) -> None:
    done = hexgraft(*commands(traces)[kind])
    assert "\x1b" not in done.stdout + done.stderr
