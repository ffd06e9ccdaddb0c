"""Colours: on a terminal, unless NO_COLOR or TERM say otherwise, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import at_terminal, hexgraft

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


@pytest.mark.parametrize("kind", ["errors", "trees", "checks"])
def test_what_is_no_terminal_has_none(traces: dict[str, Path], kind: str) -> None:
    done = hexgraft(*commands(traces)[kind])
    assert "\x1b" not in done.stdout + done.stderr
