"""`hexgraft run`: one prompt, decoded with token trees, streamed as it comes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hexgraft.host.cli.authors import authors_option, take_authors
from hexgraft.host.cli.console import print_json, say, stderr, streams_meet, token_progress
from hexgraft.host.cli.generation import (
    Generation,
    answer_json,
    generate,
    keep_quiet,
    logprobs_json,
    print_piece,
    summary,
)
from hexgraft.host.cli.interrupt import interruptible
from hexgraft.host.cli.options import (
    answer_options,
    answer_text,
    baked_option,
    draft_options,
    open_checked,
    open_decoder,
    sampling_options,
    session_options,
    system_options,
    take_system,
    verify_option,
)
from hexgraft.host.cli.place import open_baked
from hexgraft.host.cli.recovery import Recovery
from hexgraft.host.cli.tracing import Tracing, candidates_wanted, trace_option
from hexgraft.host.cli.tree_view import draw_round
from hexgraft.host.cli.tuned import tuned_option
from hexgraft.host.decode import Decoder, Round
from hexgraft.host.given_text import TEXT_LIMIT, decode_text, read_text
from hexgraft.host.prefix import check_system, restore
from hexgraft.host.stop_strings import AnswerText
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import CONNECTION_LOST, INTERRUPTED, HexgraftError, UsageError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("dash", metavar="[-]", required=False)
@click.option("-p", "--prompt", help="The prompt.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="A file with the prompt.")
@system_options
@click.option("--raw", is_flag=True, help="Feed the prompt as it is, without the chat template.")
@click.option("--prefix", metavar="TEXT", help="Let the answer begin with this text.")
@baked_option
@answer_options
@draft_options
@tuned_option
@authors_option
@sampling_options
@session_options
@verify_option
@trace_option
@click.option(
    "--reconnect",
    metavar="SECONDS",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="With --backend device: wait so long for a phone whose link was lost, and go on; 0 ends the run.",
)
@click.option(
    "--show-tree",
    is_flag=True,
    help="Draw every round's tree on stderr; where stdout goes there too, the text comes after them.",
)
@click.option(
    "--logprobs",
    metavar="N",
    type=click.IntRange(0, 100),
    help="With --json: log probabilities, N best a token.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of the text.")
def run(bundle: Path, dash: str | None, prompt: str | None, file: Path | None, **options: Any) -> int:
    """Decode one prompt with BUNDLE. The text goes to stdout as it comes, figures to stderr.

    \b
    Examples:
      hexgraft run smollm2 -p "Why is the sky blue?"
      hexgraft run smollm2 -f letter.txt --draft lookup --tree-size 32 --show-tree
      hexgraft run smollm2 -p "List three birds." --prefix "1." --stop "4."
      cat prompt.txt | hexgraft run smollm2 - --raw --plain --json
    """
    as_json = options["as_json"]
    if options["logprobs"] is not None and not as_json:
        raise UsageError("--logprobs shows in --json only", "add --json")
    text = read_prompt(prompt, file, dash)
    options["system"] = take_system(options)
    opened = open_checked(bundle, options["no_verify"])
    take_authors(opened, options)
    codec = TextCodec(opened)
    prefix = open_baked(opened, options)
    if prefix is not None and options["system"] is None and not options["raw"]:
        options["system"] = prefix.system
    ids = _encode(codec, text, options, opened.target.context)
    answer = answer_text(opened, codec, options)
    answer.begin(options["prefix"] or "")
    wanted = options | {"logprobs": candidates_wanted(options)}
    decoder = open_decoder(opened, codec, answer, dict(wanted))
    decoder.check(ids)  # before an older trace is given up for one of this run
    if prefix is not None:
        restore(decoder, prefix, ids)
    with Tracing(options["trace"], codec) as tracing:
        tracing.begin(opened, decoder, ids, options)
        recovery = Recovery(
            decoder,
            options,
            lambda serial: open_decoder(opened, codec, answer, wanted | {"serial": serial}),
        )
        generation = _decode(decoder, answer, ids, options, tracing, recovery)
    if as_json:
        result = answer_json(generation, opened, decoder)
        if options["logprobs"] is not None:
            result["logprobs"] = logprobs_json(generation.logprobs, codec, options["logprobs"])
        print_json(result)
    else:
        click.echo()
        say(summary(decoder.stats, generation.finish))
    if generation.error is not None:
        raise generation.error
    if tracing.problem is not None:
        raise tracing.problem
    return INTERRUPTED if generation.finish == "interrupted" else 0


def _decode(
    decoder: Decoder,
    answer: AnswerText,
    ids: list[int],
    options: dict[str, Any],
    tracing: Tracing,
    recovery: Recovery,
) -> Generation:
    with token_progress("prefill", len(ids) - 1) as advance:

        def follow(count: int) -> None:
            recovery.keep()
            advance(count)

        try:
            decoder.begin(ids, follow, reuse=True)
        except HexgraftError as error:
            if error.exit_code != CONNECTION_LOST or not recovery.recover(error):
                raise

    def watch(current: Round) -> None:
        tracing.round(current)
        recovery.keep()
        if options["show_tree"]:
            stderr().print(draw_round(current, tracing.show))

    # Among trees a text would stand in pieces of a few letters; they tell it as it comes.
    held: list[str] = []
    show: Callable[[str], None] = held.append if options["show_tree"] and streams_meet() else print_piece
    if options["as_json"]:
        show = keep_quiet
    try:
        with interruptible() as interrupted:
            generation = generate(
                decoder, answer, show=show, watch=watch, interrupted=interrupted, recover=recovery.recover
            )
    finally:
        if any(held):
            say("")
            print_piece("".join(held))
    tracing.end(decoder, generation.finish)
    return generation


def read_prompt(prompt: str | None, file: Path | None, dash: str | None) -> str:
    """Exactly one of -p TEXT, -f FILE and `-` (standard input)."""
    if dash not in (None, "-"):
        raise UsageError(
            f"unexpected argument {dash!r}", "give the prompt with -p TEXT, -f FILE, or - for stdin"
        )
    if sum(source is not None for source in (prompt, file, dash)) != 1:
        raise UsageError("give one prompt", "-p TEXT, -f FILE, or - for standard input")
    if file is not None:
        text = read_text(file, "prompt")
    elif prompt is not None:
        text = decode_text(prompt.encode("utf-8", "surrogateescape"), "the prompt")
    else:
        text = decode_text(sys.stdin.buffer.read(TEXT_LIMIT + 1), "the prompt on standard input")
    if not text:
        raise UsageError("the prompt is empty", "give some text with -p TEXT, -f FILE, or - for stdin")
    if "\0" in text:
        raise UsageError(f"the prompt has a NUL at character {text.index(chr(0))}", "give a text file")
    return text


def _encode(codec: TextCodec, text: str, options: dict[str, Any], capacity: int) -> list[int]:
    """The tokens of the prompt, and of the answer's given beginning, for a context of `capacity`."""
    system, prefix = options["system"], options["prefix"]
    beginning = codec.encode_plain(prefix) if prefix else []
    if options["raw"] or not codec.has_template:
        if system is not None:
            raise UsageError("--system needs a chat template", "leave out --system or --raw")
        return codec.encode_raw(text) + beginning
    if system is not None:
        check_system(codec, system, capacity)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return codec.encode_chat([*messages, {"role": "user", "content": text}]) + beginning
