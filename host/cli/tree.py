"""`hexgraft tree`: the trees of a trace, in the terminal or as one HTML page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hexgraft.host.atomic_file import check_replaced, write_whole
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.tree_view import draw_round, round_json
from hexgraft.host.counted import counted
from hexgraft.host.traces.trace import Trace, TraceRound
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.host.traces.tree_page import render_page
from hexgraft.models.errors import UsageError


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--round", "number", type=click.IntRange(min=1), help="Show this round only; the first is 1.")
@click.option(
    "--html", metavar="FILE", type=click.Path(path_type=Path), help="Write one self-contained page instead."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the rounds instead.")
def tree(trace: Path, number: int | None, html: Path | None, as_json: bool) -> int:
    """Draw the trees that TRACE recorded: what was drafted, what was accepted, what the target said instead.

    The page steps through the rounds and shows probabilities, margins, the text by where its tokens came
    from, and where the time went. It needs nothing from anywhere else.

    \b
    Examples:
      hexgraft run smollm2 -f letter.txt --trace letter.jsonl
      hexgraft tree letter.jsonl --round 7
      hexgraft tree letter.jsonl --html letter.html
      hexgraft tree letter.jsonl --json | jq '.rounds[].emitted[].text'
    """
    if html is not None and number is not None:
        raise UsageError("--html shows every round, --round one of them", "leave one out")
    if html is not None and as_json:
        raise UsageError("--html writes a page, --json prints the rounds", "leave one out")
    opened = read_trace(trace)
    if opened.end is None:
        say(f"{trace} was cut off after {counted(len(opened.rounds), 'round')}: it has no end record")
    if html is not None:
        if html.exists() and html.samefile(trace):
            raise UsageError(f"--html {html} is the trace itself", "choose another name for the page")
        check_replaced(html, b"<!doctype html>", "page", "--html")
        write_whole(html, render_page(opened).encode(), replace=True)
        click.echo(html)
        return 0
    rounds = _rounds(opened, number)
    if as_json:
        print_json(_as_dict(opened, rounds))
    else:
        _draw(opened, rounds)
    return 0


def _rounds(trace: Trace, number: int | None) -> list[TraceRound]:
    """The round that was asked for, or all of them."""
    if number is None:
        return trace.rounds
    if number > len(trace.rounds):
        raise UsageError(
            f"--round {number}: the trace has {counted(len(trace.rounds), 'round')}",
            "leave it out to see them all",
        )
    return [trace.rounds[number - 1]]


def _draw(trace: Trace, rounds: list[TraceRound]) -> None:
    show, out = _shown(trace), stdout()
    for current in rounds:
        out.print(f"[bold]round {current.number}[/bold]")
        out.print(draw_round(current.round(), show))


def _as_dict(trace: Trace, rounds: list[TraceRound]) -> dict[str, Any]:
    show = _shown(trace)
    return {
        "target": trace.header.target,
        "drafter": trace.header.drafter,
        "verifier": trace.header.verifier,
        "finish": trace.finish,
        "rounds": [{"round": each.number, **round_json(each.round(), show)} for each in rounds],
    }


def _shown(trace: Trace) -> Callable[[int], str]:
    texts = trace.texts()
    return lambda token: texts.get(token, f"<{token}>")
