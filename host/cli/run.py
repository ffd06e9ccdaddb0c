"""`hexgraft run`: one prompt, decoded with token trees, streamed as it comes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from hexgraft.host.backends import BACKENDS, open_session, parse_width_option
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.console import print_json, say, stderr, token_progress
from hexgraft.host.cli.tree_view import draw_round
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import DRAFTERS, default_drafter, make_drafter
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.host.stats import Stats
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import INTERRUPTED, UsageError

STDIN_LIMIT = 16 << 20


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say how tokens are drawn."""
    for option in reversed(
        (
            click.option("--temperature", default=0.0, show_default=True, help="0 takes the best token."),
            click.option("--top-k", default=0, show_default=True, help="Draw from the k best; 0 for all."),
            click.option(
                "--top-p", default=1.0, show_default=True, help="Draw from the best of this total mass."
            ),
            click.option(
                "--min-p", default=0.0, show_default=True, help="Drop tokens below this share of the best."
            ),
            click.option("--repetition-penalty", default=1.0, show_default=True),
            click.option("--presence-penalty", default=0.0, show_default=True),
            click.option("--frequency-penalty", default=0.0, show_default=True),
            click.option("--seed", default=0, show_default=True, help="Keys every draw, with its position."),
        )
    ):
        command = option(command)
    return command


def take_sampling(options: dict[str, Any]) -> Sampling:
    """Pop the values of `sampling_options` out of a command's options."""
    return Sampling(
        temperature=options.pop("temperature"),
        top_k=options.pop("top_k"),
        top_p=options.pop("top_p"),
        min_p=options.pop("min_p"),
        repetition=options.pop("repetition_penalty"),
        presence=options.pop("presence_penalty"),
        frequency=options.pop("frequency_penalty"),
        seed=options.pop("seed"),
    )


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say where and how graphs run."""
    for option in reversed(
        (
            click.option("--backend", type=click.Choice(BACKENDS), default="cpu", show_default=True),
            click.option(
                "--widths",
                help="Pad passes to these widths, as a phone's static graphs do: `bundle`, or numbers. "
                "Default: any width.",
            ),
            click.option("--threads", default=0, help="CPU threads; 0 for one a core."),
        )
    ):
        command = option(command)
    return command


def read_prompt(prompt: str | None, file: Path | None, dash: str | None) -> str:
    """Exactly one of -p TEXT, -f FILE and `-` (standard input)."""
    if dash not in (None, "-"):
        raise UsageError(
            f"unexpected argument {dash!r}", "give the prompt with -p TEXT, -f FILE, or - for stdin"
        )
    if sum(source is not None for source in (prompt, file, dash)) != 1:
        raise UsageError("give one prompt", "-p TEXT, -f FILE, or - for standard input")
    if prompt is not None:
        return prompt
    try:
        raw = sys.stdin.buffer.read(STDIN_LIMIT) if file is None else file.read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"the prompt in {file or 'standard input'} is not UTF-8 text: {error.reason}"
        ) from error


@dataclass(slots=True)
class Generation:
    """A text as it grows."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("dash", metavar="[-]", required=False)
@click.option("-p", "--prompt", help="The prompt.")
@click.option("-f", "--file", type=click.Path(path_type=Path), help="A file with the prompt.")
@click.option("--system", help="A system message for the chat template.")
@click.option("--raw", is_flag=True, help="Feed the prompt as it is, without the chat template.")
@click.option(
    "--draft",
    type=click.Choice(DRAFTERS),
    help="How to draft. Default: levels with a draft model, or lookup.",
)
@click.option("--plain", is_flag=True, help="Plain decoding, the same as --draft none.")
@click.option("--tree-size", default=16, show_default=True, help="Nodes of a tree, its root counted.")
@click.option(
    "--tree-depth", type=click.IntRange(min=1), help="Levels below the root. Default: no limit of its own."
)
@click.option("--max-tokens", default=256, show_default=True)
@sampling_options
@session_options
@click.option("--show-tree", is_flag=True, help="Draw every round's tree on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end instead of the text.")
def run(bundle: Path, dash: str | None, prompt: str | None, file: Path | None, **options: Any) -> int:
    """Decode one prompt with BUNDLE. The text goes to stdout as it comes, figures to stderr.

    \b
    Examples:
      hexgraft run smollm2 -p "Why is the sky blue?"
      hexgraft run smollm2 -f letter.txt --draft lookup --tree-size 32 --show-tree
      cat prompt.txt | hexgraft run smollm2 - --raw --plain --json
    """
    text = read_prompt(prompt, file, dash)
    opened = open_bundle(bundle)
    codec = TextCodec(opened)
    ids = _encode(codec, text, options.pop("raw"), options.pop("system"))
    decoder = open_decoder(opened, options)
    as_json, show_tree = options["as_json"], options["show_tree"]
    with token_progress("prefill", len(ids) - 1) as advance:
        decoder.begin(ids, advance)
    generation = Generation()
    interrupted = False
    try:
        _generate(decoder, codec, generation, show_tree, quiet=as_json)
    except KeyboardInterrupt:
        interrupted = True
        generation.finish = "interrupted"
    finally:
        if not as_json:
            click.echo()
    if as_json:
        print_json(
            {
                "text": codec.decode(generation.tokens),
                "tokens": generation.tokens,
                "finish": generation.finish,
                "bundle": opened.digest,
                "drafter": decoder.drafter.name,
                **decoder.stats.as_dict(),
            }
        )
    else:
        say(summary(decoder.stats, generation.finish))
    return INTERRUPTED if interrupted else 0


def open_decoder(bundle: Bundle, options: dict[str, Any]) -> Decoder:
    """A decoder from the options of `run`; target and draft run on the same backend."""
    sampling = take_sampling(options)
    widths = parse_width_option(options["widths"], bundle)

    def session(role: str) -> Session:
        return open_session(
            bundle,
            role,
            options["backend"],
            widths=widths,
            whole=options["widths"] == "bundle",
            threads=options["threads"],
        )

    name = "none" if options["plain"] else options["draft"] or default_drafter(bundle)
    if options["plain"] and options["draft"] not in (None, "none"):
        raise UsageError(f"--plain and --draft {options['draft']} contradict each other", "leave one out")
    decode = DecodeOptions(
        max_tokens=options["max_tokens"],
        tree_size=1 if name == "none" else options["tree_size"],
        tree_depth=options["tree_depth"],
        stops=frozenset(bundle.manifest.tokenizer.stop_tokens),
        sampling=sampling,
    )
    drafter = make_drafter(name, bundle, lambda: session("draft"))
    return Decoder(session("target"), drafter, decode)


def _encode(codec: TextCodec, text: str, raw: bool, system: str | None) -> list[int]:
    if not text:
        raise UsageError("the prompt is empty", "give some text with -p TEXT, -f FILE, or on standard input")
    if raw or not codec.has_template:
        if system is not None:
            raise UsageError("--system needs a chat template", "leave out --system or --raw")
        return codec.encode_raw(text)
    messages = [{"role": "system", "content": system}] if system is not None else []
    return codec.encode_chat([*messages, {"role": "user", "content": text}])


def _generate(
    decoder: Decoder, codec: TextCodec, generation: Generation, show_tree: bool, *, quiet: bool
) -> None:
    stream = codec.stream()
    for current in decoder.rounds():
        generation.tokens += current.tokens
        generation.finish = current.finish
        if not quiet:
            click.echo(stream.push(current.tokens), nl=False)
            sys.stdout.flush()
        if current.degraded:
            say("\nwarning: logits were not finite in a tree; this round fell back to one node")
        if show_tree:
            stderr().print(draw_round(current, codec.token))


def summary(stats: Stats, finish: str | None) -> str:
    """One line about a run: why it ended, how fast it was, what the trees brought."""
    parts = [
        f"{stats.tokens} tokens in {stats.rounds} rounds ({stats.tokens_per_round:.2f} a round)",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"prompt {stats.prompt_tokens} tokens in {stats.seconds.get('prefill', 0):.2f} s",
    ]
    if stats.draft_passes:
        parts.append(f"{stats.draft_passes} draft passes")
    return f"[{finish}] " + ", ".join(parts)
