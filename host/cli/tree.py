"""`hexgraft tree`: the trees of a trace, in the terminal or as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from hexgraft.host.atomic_file import check_replaced, write_whole
from hexgraft.host.cli.console import say, stdout
from hexgraft.host.cli.tree_view import draw_round
from hexgraft.host.traces.trace import Trace
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.host.traces.tree_page import render_page
from hexgraft.models.errors import UsageError


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--round", "number", type=click.IntRange(min=1), help="Show this round only; the first is 1.")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write one self-contained page instead."
)
def tree(trace: Path, number: int | None, html: Path | None) -> int:
    """Draw the trees that TRACE recorded: what was drafted, what was accepted, what the target said instead.

    The page steps through the rounds and shows probabilities, margins, the text by where its tokens came
    from, and where the time went. It needs nothing from anywhere else.

    \b
    Examples:
      hexgraft run smollm2 -f letter.txt --trace letter.jsonl
      hexgraft tree letter.jsonl --round 7
      hexgraft tree letter.jsonl --html letter.html
    """
    if html is not None and number is not None:
        raise UsageError("--html shows every round, --round one of them", "leave one out")
    opened = read_trace(trace)
    if opened.end is None:
        say(f"{trace} was cut off after {len(opened.rounds)} rounds: it has no end record")
    if html is not None:
        if html.exists() and html.samefile(trace):
            raise UsageError(f"--html {html} is the trace itself", "choose another name for the page")
        check_replaced(html, b"<!doctype html>", "page", "--html")
        write_whole(html, render_page(opened).encode(), replace=True)
        say(f"wrote {html}")
        return 0
    _draw(opened, number)
    return 0


def _draw(trace: Trace, number: int | None) -> None:
    if number is not None and number > len(trace.rounds):
        raise UsageError(
            f"--round {number}: the trace has {len(trace.rounds)} rounds", "leave it out to see them all"
        )
    texts, out = trace.texts(), stdout()
    for current in trace.rounds if number is None else [trace.rounds[number - 1]]:
        out.print(f"[bold]round {current.number}[/bold]")
        out.print(draw_round(current.round(), lambda token: texts.get(token, f"<{token}>")))
