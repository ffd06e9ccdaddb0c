"""A tree as the terminal shows it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hexgraft.host.cli.tree_view import draw_round
from hexgraft.host.decode import Round
from hexgraft.host.tree import TreeBuilder


def drawn(tokens: tuple[int, ...], finish: str | None) -> list[str]:
    """A root with the children 1 and 5, and 2 below 1, of which the text takes 1 and then `tokens`."""
    builder = TreeBuilder(9)
    node = builder.add(0, 1, 0.5, "levels")
    builder.add(0, 5, 0.25, "levels")
    builder.add(node, 2, 0.75, "levels")
    current = Round(builder.build(), (0, 1), (1, *tokens), 7, finish, degraded=False)
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(draw_round(current, lambda token: f"t{token}"))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_targets_own_token_follows_the_last_accepted_one() -> None:
    assert drawn((8,), None) == [
        "t9 at position 7",
        "├── ✓ t1 0.50 levels",
        "│   ├── → t8 the target's own token",
        "│   └── ✗ t2 0.75 levels",
        "└── ✗ t5 0.25 levels",
    ]


@pytest.mark.parametrize("finish", ["stop", "max-tokens", "length", None])
def test_a_text_that_ends_with_a_drafted_token_has_it_accepted(finish: str | None) -> None:
    """The walk does not go on to the node that carries it; None is a round whose next row was not finite."""
    assert drawn((2,), finish) == ["t9 at position 7", "├── ✓ t1 t2 0.50–0.75 levels", "└── ✗ t5 0.25 levels"]
