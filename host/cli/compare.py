"""`hexgraft compare`: two traces, or one bundle on two sessions: where they part first, and why."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from shlex import quote
from typing import Any

import click
from rich.markup import escape

from hexgraft.host.adb.session import PROVIDERS
from hexgraft.host.backends import BACKENDS, check_provider
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.console import print_json, say, stdout, token_progress
from hexgraft.host.cli.finite import Finite
from hexgraft.host.cli.options import (
    answer_options,
    answer_text,
    check_tree,
    draft_options,
    open_checked,
    open_decoder,
    sampling_options,
    session_options,
    verify_option,
)
from hexgraft.host.cli.phone_options import build_where_it_is
from hexgraft.host.cli.run import read_prompt
from hexgraft.host.cli.table import Table
from hexgraft.host.cli.tree_view import visible
from hexgraft.host.cli.typed import typed_options
from hexgraft.host.text import TextCodec
from hexgraft.host.traces.compare import (
    DIFFERENT,
    IDENTICAL,
    NOISE_FLOAT32,
    NOISE_OTHER,
    NOISE_ROUNDED,
    Comparison,
    Place,
    as_dict,
    candidates,
)
from hexgraft.host.traces.compare import compare as compare_traces
from hexgraft.host.traces.trace import Recorder, Texts, Trace, top_recorded
from hexgraft.host.traces.trace_file import read_trace
from hexgraft.models.errors import FAILED, UsageError

_BEFORE = 16


@click.command()
@click.argument("first", metavar="A|BUNDLE", type=click.Path(path_type=Path))
@click.argument("second", metavar="[B]", required=False, type=click.Path(path_type=Path))
@click.option("-p", "--prompt", help="BUNDLE only: the prompt to decode on both sessions.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="BUNDLE only: a file with the prompt.")
@click.option("--raw", is_flag=True, help="Feed the prompt as it is, without the chat template.")
@click.option("--with-backend", type=click.Choice(BACKENDS), help="The second session. Default: --backend.")
@click.option(
    "--with-provider", type=click.Choice(PROVIDERS), help="Its provider. Default: cpu, or as the first."
)
@click.option("--with-widths", help="Its widths: `bundle`, numbers, or `any`, the default.")
@click.option(
    "--noise",
    type=Finite(min=0),
    help=f"Logit difference that passes as rounding. Default: {NOISE_FLOAT32:g} between float32 sessions, "
    f"20 times what was measured between widths; {NOISE_OTHER:g} with half precision or quantisation; "
    f"{NOISE_ROUNDED:g} where activations are rounded (a8) and attention is fused, or one runs on a phone.",
)
@answer_options
@draft_options
@sampling_options
@session_options
@verify_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    first: Path,
    second: Path | None,
    prompt: str | None,
    file: Path | None,
    noise: float | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Find the first difference of two traces A and B, or of BUNDLE on two sessions.

    The verdict is `identical`, `tie` (rounding explains the difference) or `different`, and then exit code 1.
    Traces of other drafters and tree sizes can be compared, since they emit the same tokens.

    \b
    Examples:
      hexgraft compare laptop.jsonl phone.jsonl
      hexgraft compare smollm2 -p "Why is the sky blue?" --widths bundle
    """
    if second is not None:
        if prompt is not None or file is not None:
            raise UsageError("two traces have their prompt", "leave out -p and -f, or give one bundle")
        unused = next((o for name, o in typed_options().items() if name not in ("noise", "as_json")), None)
        if unused is not None:
            raise UsageError(f"two traces have no use for {unused}", "leave it out, or give one bundle")
        _refuse_folders(first, second)
        a, b = read_trace(first), read_trace(second)
    elif first.is_dir():
        a, b = _both(first, read_prompt(prompt, file, None), options)
    else:
        raise UsageError(
            "one trace has nothing to be compared with", "give two traces, or a bundle's folder and a prompt"
        )
    found = compare_traces(a, b, noise)
    texts = a.texts() | b.texts()
    if as_json:
        print_json(as_dict(found, texts))
    else:
        _show(found, a, texts)
    return FAILED if found.verdict == DIFFERENT else 0


def _refuse_folders(first: Path, second: Path) -> None:
    """A bundle goes alone; a trace and a bundle are what `replay` takes."""
    for path, other in ((first, second), (second, first)):
        if path.is_dir():
            bundle, trace = quote(str(path)), quote(str(other))
            raise UsageError(
                f"{path} is a folder, and of two that are compared each is a trace, a file",
                f"hexgraft replay {trace} {bundle}"
                if other.is_file()
                else f"hexgraft compare {bundle} -p PROMPT",
            )


def _both(path: Path, prompt: str, options: dict[str, Any]) -> tuple[Trace, Trace]:
    """The prompt decoded on both sessions of one bundle."""
    bundle = open_checked(path, options["no_verify"])
    codec = TextCodec(bundle)
    raw = options["raw"] or not codec.has_template
    ids = codec.encode_raw(prompt) if raw else codec.encode_chat([{"role": "user", "content": prompt}])
    second = {
        "backend": options["with_backend"] or options["backend"],
        "provider": options["with_provider"] or ("cpu" if options["with_backend"] else options["provider"]),
        "widths": None if options["with_widths"] == "any" else options["with_widths"],
    }
    for side, backend, widths in (
        (options, "--backend", "--widths"),
        (second, "--with-backend" if options["with_backend"] else "--backend", "--with-widths"),
    ):  # before one of them has decoded
        check_provider(side["backend"], side["provider"], backend)
        check_tree(options["tree_size"], side["widths"], bundle, widths)
    if all(options[name] == value for name, value in second.items()):
        say("note: both sessions are the same; choose another with --with-backend or --with-widths")
    sides = dict(options), options | second
    build_where_it_is(*sides)
    return _decode(bundle, codec, ids, sides[0]), _decode(bundle, codec, ids, sides[1])


def _decode(bundle: Bundle, codec: TextCodec, ids: list[int], options: dict[str, Any]) -> Trace:
    options["logprobs"] = top_recorded(options["temperature"])
    whole, knobs = options["widths"] == "bundle", options["draft_option"]
    answer = answer_text(bundle, codec, options)
    decoder = open_decoder(bundle, codec, answer, options)
    recorder = Recorder(codec.token)
    trace = Trace(recorder.header(bundle, decoder, ids, whole=whole, knobs=knobs))
    what = f"{options['backend']}, widths {options['widths'] or 'any'}"
    with token_progress(what, decoder.options.max_tokens) as advance:
        decoder.begin(ids)
        for current in decoder.rounds():
            trace.rounds.append(recorder.round(current))
            advance(len(current.tokens))
    trace.end = recorder.end(decoder.stats, trace.rounds[-1].finish)
    decoder.drafter.close()
    decoder.session.close()
    return trace


def _show(found: Comparison, trace: Trace, texts: Texts) -> None:
    out = stdout()
    words = {IDENTICAL: "[green]identical[/green]", DIFFERENT: "[bold red]different[/bold red]"}
    out.print(f"{words.get(found.verdict, '[yellow]rounding tie[/yellow]')}: {escape(found.reason)}")
    if found.places is None:
        return
    before = "".join(
        texts.get(token, "") for token in trace.emitted[max(0, found.common - _BEFORE) : found.common]
    )
    out.print(f"after {found.common} equal tokens[dim], the last of them: {escape(visible(before))}[/dim]\n")
    table = Table()
    table.add_column("")
    for name in ("A", "B"):
        table.add_column(name)
    for row in _rows(found.places, texts):
        table.add_row(*map(escape, row))
    table.add_section()
    best = (candidates(place.judged) for place in found.places)
    for i, pair in enumerate(zip_longest(*best)):
        table.add_row(f"best {i + 1}", *(escape(_candidate(entry, texts)) for entry in pair))
    out.print(table)
    if found.swing is not None:
        out.print(
            f"The two traces disagree by {found.swing:.3g} about the difference of the two logits; "
            f"noise: {found.noise:.3g}."
        )


def _rows(places: tuple[Place, Place], texts: Texts) -> list[tuple[str, str, str]]:
    def cell(place: Place, what: str) -> str:
        if place.token is None:
            return f"the end ({place.finish})" if what == "token" else "–"
        if what == "token":
            return visible(texts.get(place.token, f"<{place.token}>")) + f"  ({place.token})"
        if what == "where":
            return f"round {place.round}, node {place.node}"
        number = place.margin if what == "margin of the best" else place.lead
        return "not known" if number is None else f"{number:.6g}"

    names = ("where", "token", "margin of the best", "lead over the other")
    return [(name, cell(places[0], name), cell(places[1], name)) for name in names]


def _candidate(entry: tuple[int, float | None, float | None] | None, texts: Texts) -> str:
    if entry is None:
        return ""
    token, logit, chance = entry
    shown = visible(texts.get(token, f"<{token}>"))
    numbers = "–" if logit is None else f"{logit:9.5f}"
    return f"{shown:<16} {numbers}" + ("" if chance is None else f" {chance:8.2%}")
