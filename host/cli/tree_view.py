"""A token tree as a terminal shows it: what was proposed, what the target accepted, and what it said
instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from hexgraft.host.cli import console
from hexgraft.host.decode import Round
from hexgraft.host.traces.trace import finite
from hexgraft.host.tree import ROOT, TokenTree


def draw_round(current: Round, show: Callable[[int], str]) -> Tree | str:
    """The tree of a round, a line where it is the root alone; `show` gives a token's text.

    Accepted nodes are green, rejected ones dim, the target's own token cyan. A run of only children with
    one fate shares a line, so that long drafts stay readable.
    """
    tree, end = current.tree, current.accepted[-1]
    carried = _carried(current)
    last, accepted = carried[-1], {ROOT, *carried}

    def text(node: int) -> str:
        return escape(visible(show(int(tree.tokens[node]))))

    def own() -> str:
        return f"[bold cyan]→ {escape(visible(show(current.tokens[-1])))}[/bold cyan]"

    root = f"[bold]{text(ROOT)}[/bold] [dim]at position {current.context}[/dim]"
    if len(tree) == 1:
        return f"{root} {own()}"
    drawn = Tree(root)

    def grow(branch: Tree, parent: int) -> None:
        if parent == end and last is None:
            branch.add(f"{own()} [dim]the target's own token[/dim]")
        for child in tree.children(parent):
            run = _run(tree, child, accepted)
            grow(branch.add(_label(tree, run, child in accepted, text)), run[-1])

    grow(drawn, ROOT)
    return drawn


def round_json(current: Round, show: Callable[[int], str]) -> dict[str, Any]:
    """What `draw_round` draws, for --json: the nodes in the order of the tree, parents first, and what the
    round emitted with the node that carried it; null for the target's own token."""
    tree, carried = current.tree, _carried(current)
    accepted = {ROOT, *carried}

    def entry(token: int) -> dict[str, Any]:
        return {"token": token, "text": show(token)}

    return {
        "context": current.context,
        "nodes": [
            entry(int(tree.tokens[node]))
            | {
                "parent": int(tree.parents[node]) if node != ROOT else None,
                "probability": finite(float(tree.probabilities[node])),
                "source": tree.sources[node],
                "accepted": node in accepted,
            }
            for node in range(len(tree))
        ],
        "emitted": [
            entry(token) | {"node": node} for token, node in zip(current.tokens, carried, strict=True)
        ],
        "finish": current.finish,
    }


def _carried(current: Round) -> list[int | None]:
    """The nodes that carried what was emitted, None for the target's own token."""
    # A text may end with a drafted token: the walk does not go on to the node that carries it.
    return [*current.accepted[1:], current.tree.child(current.accepted[-1], current.tokens[-1])]


def _run(tree: TokenTree, node: int, accepted: set[int | None]) -> list[int]:
    """`node` and its descendants as long as each is an only child with the same fate, and the walk goes
    on."""
    run = [node]
    while len(children := tree.children(run[-1])) == 1 and (children[0] in accepted) == (node in accepted):
        run.append(children[0])
    return run


def _label(tree: TokenTree, run: list[int], accepted: bool, text: Callable[[int], str]) -> str:
    words = " ".join(text(node) for node in run)
    chances = [float(tree.probabilities[node]) for node in (run[0], run[-1])]
    known = [f"{p:.2f}" for p in chances if not math.isnan(p)]
    share = " " + ("–".join(known) if len(run) > 1 else known[0]) if known else ""
    if accepted:
        return f"[green]✓ {words}[/green][dim]{share} {tree.sources[run[0]]}[/dim]"
    return f"[dim]✗ {words}{share} {tree.sources[run[0]]}[/dim]"


def visible(text: str) -> str:
    """Spaces and line ends as signs one can see."""
    signs = text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")
    return console.visible(signs) or "∅"
