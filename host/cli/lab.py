"""`hexgraft lab`: which drafter, and how large a tree, on a set of prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import print_json, say, stdout, token_progress
from hexgraft.host.cli.options import (
    open_checked,
    open_role,
    sampling_options,
    session_options,
    take_sampling,
    verify_option,
)
from hexgraft.host.cli.table import Table
from hexgraft.host.counted import counted
from hexgraft.host.decode import DecodeOptions
from hexgraft.host.drafters.base import Drafter
from hexgraft.host.drafters.registry import DRAFTERS, PLAIN, WITHOUT_MODEL, make_drafter
from hexgraft.host.given_text import read_prompts
from hexgraft.host.lab.comparison import LabRow, check_prompts, compare_drafters, transcribe
from hexgraft.host.lab.plot import check_plot, plot_lab
from hexgraft.host.lab.prompts import CATEGORIES, LAB_PROMPTS, LabPrompt
from hexgraft.host.session import Session
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import UsageError

WITH_MODEL = ("lookup", "chain", "best-first", "levels", "lookup+levels")
SIZES = (4, 8, 16, 32)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--drafters",
    help=f"Names, comma separated. Default: {', '.join(WITH_MODEL)}; without a draft model "
    f"{' and '.join(WITHOUT_MODEL)}.",
)
@click.option(
    "--tree-sizes",
    help=f"Nodes of a tree, comma separated. Default: those of {','.join(map(str, SIZES))} that fit the "
    "target's widest graph.",
)
@click.option(
    "--max-tokens", default=96, show_default=True, type=click.IntRange(min=1), help="Tokens a prompt."
)
@click.option(
    "--category", multiple=True, type=click.Choice(CATEGORIES), help="Only these prompts. Repeatable."
)
@click.option("--prompts", type=click.Path(path_type=Path), help="A file of your own: a prompt a line.")
@sampling_options
@session_options
@verify_option
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture too: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def lab(bundle: Path, **options: Any) -> None:
    """Try drafters and tree sizes on thirty prompts of six kinds, or on a file of your own.

    Every prompt is decoded once, plainly. Under the `match` verifier a drafter changes no token, so each is
    then tried against that text, which gives the figures of a real run at the cost of drafting alone.

    \b
    Examples:
      hexgraft lab smollm2
      hexgraft lab pair --drafters chain,levels --tree-sizes 8,16 --category code-edit --plot lab.png
    """
    if options["plot"] is not None:
        check_plot(options["plot"])
    opened = open_checked(bundle, options["no_verify"])
    sampling = take_sampling(options)
    asked = _sizes(options["tree_sizes"])
    names: Sequence[str] = WITH_MODEL if opened.draft is not None else WITHOUT_MODEL
    if options["drafters"] is not None:
        names = take_drafters(options["drafters"], opened)
    prompts = take_prompts(options["prompts"], options["category"])
    encode = encoder(TextCodec(opened))

    def session(role: str) -> Session:
        return open_role(opened, role, options)

    target = session("target")
    narrowed = options["widths"] not in (None, "bundle")
    sizes = _fitting(asked, target.spec.tree_width, narrowed=narrowed)
    check_prompts(prompts, encode, target.spec.capacity)
    stops = frozenset(opened.manifest.tokenizer.stop_tokens)
    decode = DecodeOptions(max_tokens=options["max_tokens"], tree_size=1, stops=stops, sampling=sampling)
    with token_progress("decoding plainly", len(prompts)) as advance:
        transcripts = []
        for transcript in transcribe(target, prompts, encode, decode):
            transcripts.append(transcript)
            advance(1)
    makers: dict[str, Callable[[], Drafter]] = {
        name: partial(make_drafter, name, opened, partial(session, "draft"), sampling=sampling)
        for name in names
    }
    with token_progress("trying drafters", len(names) * len(sizes) * len(prompts)) as advance:
        rows = compare_drafters(target, transcripts, makers, sizes, decode, partial(advance, 1))
    # Shown first: a picture that fails then loses no row.
    if options["as_json"]:
        print_json(
            {"bundle": opened.digest, "tokens": decode.max_tokens, "rows": [r.as_dict() for r in rows]}
        )
    else:
        _show(rows, len(prompts), sum(len(t.answer) for t in transcripts))
    if options["plot"] is not None:
        title = f"{opened.target.name}, temperature {sampling.temperature:g}"
        plot_lab(rows, title, options["plot"])
        say(f"wrote {options['plot']}")


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 2 or sizes[-1] > 1024:
        raise UsageError(
            f"--tree-sizes {text!r} is not a list of numbers from 2 to 1024", "example: --tree-sizes 4,8,16"
        )
    return sizes


def _fitting(asked: list[int] | None, widest: int, *, narrowed: bool) -> list[int]:
    """The sizes asked for, all of which must fit the target's widest graph; else the usual ones that do.
    `narrowed` tells that --widths may have left out wider graphs."""
    sizes = asked or [size for size in SIZES if size <= widest] or [max(2, widest)]
    if sizes[-1] > widest:
        way = "choose a wider --widths" if narrowed else "export with a wider --widths"
        raise UsageError(
            f"--tree-sizes {sizes[-1]} is wider than the target's widest graph, {widest}",
            f"give at most {widest}, or {way}" if widest > 1 else way,
        )
    return sizes


def take_drafters(text: str, bundle: Bundle, known: Sequence[str] = DRAFTERS) -> list[str]:
    """The drafters of --drafters; UsageError for one that is not among `known` or that the bundle cannot
    have."""
    names = [name.strip() for name in text.split(",")]
    known = [name for name in known if name != PLAIN]
    for name in names:
        if name not in known:
            raise UsageError(f"unknown drafter {name!r} in --drafters", f"one of: {', '.join(known)}")
        if bundle.draft is None and name not in WITHOUT_MODEL:
            raise UsageError(
                f"the drafter {name} needs a draft model, {bundle.path} has none",
                f"choose among {', '.join(WITHOUT_MODEL)}, or export again with `--draft CHECKPOINT`",
            )
    return names


def take_prompts(file: Path | None, categories: Sequence[str]) -> list[LabPrompt]:
    """The lab's prompts, of some categories or all, or those of a file, a line each."""
    if file is None:
        return [p for p in LAB_PROMPTS if not categories or p.category in categories]
    if categories:
        raise UsageError("--category chooses among the built-in prompts", "leave out --category or --prompts")
    return [LabPrompt("file", prompt) for prompt in read_prompts(file)]


def encoder(codec: TextCodec) -> Callable[[str], list[int]]:
    """Turns a user message into tokens, through the chat template where there is one."""

    def encode(text: str) -> list[int]:
        if not codec.has_template:
            return codec.encode_raw(text)
        return codec.encode_chat([{"role": "user", "content": text}])

    return encode


def _show(rows: list[LabRow], prompts: int, tokens: int) -> None:
    out = stdout()
    table = Table(title=f"{counted(prompts, 'prompt')}, {counted(tokens, 'token')}", title_justify="left")
    table.add_column("drafter")
    for column in ("nodes", "tokens a round", "draft passes a round", "nodes accepted"):
        table.add_column(column, justify="right")
    table.add_column("accepted by rank 0, 1, 2, 3")
    table.add_column("by depth 1, 2, 3, 4")
    for row in (row for row in rows if row.category == "all"):
        table.add_row(
            row.drafter,
            str(row.tree_size),
            f"{row.tokens_per_round:.2f}",
            f"{row.passes_per_round:.2f}",
            f"{row.efficiency:.0%}",
            " ".join(f"{tally.rate:.2f}" for tally in row.by_rank[:4]),
            " ".join(f"{tally.rate:.2f}" for tally in row.by_depth[:4]),
        )
    out.print(table)
    largest = max(row.tree_size for row in rows)
    drafters = list(dict.fromkeys(row.drafter for row in rows))
    by_category = Table(
        "category", *drafters, title=f"tokens a round at {largest} nodes", title_justify="left"
    )
    for category in dict.fromkeys(row.category for row in rows if row.category != "all"):
        own = {r.drafter: r for r in rows if r.category == category and r.tree_size == largest}
        by_category.add_row(category, *(f"{own[name].tokens_per_round:.2f}" for name in drafters))
    out.print(by_category)
