"""Options that several commands share, and the decoder they describe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click

from hexgraft.host.adb.phone import ROOT
from hexgraft.host.adb.session import PROVIDERS
from hexgraft.host.backends import BACKENDS, open_session, parse_width_option
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.authors import take_authors
from hexgraft.host.cli.console import bytes_progress
from hexgraft.host.cli.phone_options import build_options, refuse_unused
from hexgraft.host.cli.place import phone_of, place_of
from hexgraft.host.cli.threads import threads_option
from hexgraft.host.cli.tuned import Draft, site_of, tuned_drafter, wants_tuned
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter
from hexgraft.host.drafters.knobs import TableKnobs, parse_knobs
from hexgraft.host.drafters.registry import DRAFTERS, PLAIN, WITHOUT_MODEL, default_drafter, make_drafter
from hexgraft.host.given_text import read_text
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.host.stop_strings import AnswerText
from hexgraft.host.text import TextCodec
from hexgraft.host.verify import VERIFIERS, Verifier, make_verifier
from hexgraft.models.errors import UsageError

DEFAULT_TREE_SIZE = 16

Command = Callable[..., Any]


def _all(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """One decorator out of several, in the order the help shows them."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _used(command: Command) -> Command:
    """Refuse options of another backend before the command begins; two backends may be compared."""

    @wraps(command)
    def checked(*arguments: Any, **options: Any) -> Any:
        refuse_unused(*filter(None, (options["backend"], options.get("with_backend"))))
        return command(*arguments, **options)

    return checked


sampling_options = _all(
    click.option(
        "--temperature",
        default=0.0,
        show_default=True,
        help="0 takes the best token, 1 draws as the model has it; 0 or more.",
    ),
    click.option("--top-k", default=0, show_default=True, help="Draw from the k best; 0 for all."),
    click.option(
        "--top-p",
        default=1.0,
        show_default=True,
        help="Draw from the best of this total mass, above 0 and up to 1.",
    ),
    click.option(
        "--min-p", default=0.0, show_default=True, help="Drop tokens below this share of the best, 0 to 1."
    ),
    click.option(
        "--repetition-penalty",
        default=1.0,
        show_default=True,
        help="Divides the logits of tokens seen so far, prompt included: 0.001 to 1000, above 1 discourages.",
    ),
    click.option(
        "--presence-penalty",
        default=0.0,
        show_default=True,
        help="Taken off the logit of every token generated so far; -1000 to 1000.",
    ),
    click.option(
        "--frequency-penalty",
        default=0.0,
        show_default=True,
        help="Taken off the logit once for each time a token was generated; -1000 to 1000.",
    ),
    click.option(
        "--seed", default=0, show_default=True, help="Keys every draw, with its position; 0 to 2^64-1."
    ),
)
"""How tokens are drawn."""

session_options = _all(
    click.option(
        "--backend",
        type=click.Choice(BACKENDS),
        default="cpu",
        show_default=True,
        help="Where graphs run: in this process, in the C++ runner, on the NPU's emulator, on a phone.",
    ),
    click.option(
        "--widths",
        help="Pad passes to these widths, as a phone's static graphs do: `bundle`, or numbers. "
        "Default: any width.",
    ),
    threads_option,
    click.option(
        "--provider",
        type=click.Choice(PROVIDERS),
        default="cpu",
        show_default=True,
        help="With --backend runner or device: what computes there; htp is the NPU.",
    ),
    click.option(
        "-s", "--serial", envvar="ANDROID_SERIAL", help="With --backend device: which phone, if several."
    ),
    click.option(
        "--root",
        envvar="HEXGRAFT_DEVICE_ROOT",
        default=ROOT,
        show_default=True,
        help="With --backend device: our folder on the phone.",
    ),
    build_options,
    click.option(
        "--no-stay-awake", is_flag=True, help="With --backend device: let the screen go off meanwhile."
    ),
    _used,
)
"""Where and how graphs run."""

verify_option = click.option(
    "--no-verify", is_flag=True, help="Do not check the sha256 of the bundle's files first (about 1 s a GB)."
)

system_options = _all(
    click.option("--system", metavar="TEXT", help="A system message for the chat template."),
    click.option(
        "--system-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="A file with the system message.",
    ),
)
"""The system message, as `take_system` reads it."""

baked_option = click.option(
    "--baked",
    metavar="PREFIX",
    type=click.Path(path_type=Path),
    help="Load the cache of a system message that `hexgraft bake` wrote; its text is the system message.",
)

draft_options = _all(
    click.option(
        "--draft",
        type=click.Choice(DRAFTERS),
        help="How to draft. Default: levels with a draft model, or lookup.",
    ),
    click.option("--plain", is_flag=True, help="Plain decoding, the same as --draft none."),
    click.option(
        "--tree-size",
        type=int,
        help="Nodes of a tree, its root counted. Default: 16, or the widest graph if that is narrower.",
    ),
    click.option(
        "--tree-depth",
        type=click.IntRange(min=1),
        help="Levels below the root. Default: no limit of its own.",
    ),
    click.option(
        "--draft-option",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of the drafter; repeatable. An unknown NAME lists those there are.",
    ),
    click.option(
        "--corpus", type=click.Path(path_type=Path), help="A text file in which lookup finds drafts too."
    ),
    click.option(
        "--verifier",
        type=click.Choice(VERIFIERS),
        default="match",
        show_default=True,
        help="match: token for token as plain. The others: as plain in distribution, with --draft sampled.",
    ),
)
"""How trees are made and judged."""

answer_options = _all(
    click.option(
        "--max-tokens", default=256, show_default=True, help="Tokens of an answer at the most, 1 or more."
    ),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="End the answer right before this text; repeatable."
    ),
)
"""When an answer ends."""


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


def take_system(options: dict[str, Any]) -> str | None:
    """Pop the values of `system_options`: the message, None without one. Line ends at the end of a file are
    left out."""
    text: str | None = options.pop("system")
    file: Path | None = options.pop("system_file")
    if file is None:
        return text
    if text is not None:
        raise UsageError("--system and --system-file contradict each other", "leave one out")
    message = read_text(file, "system message").rstrip("\r\n")
    if not message:
        raise UsageError(f"the system message in {file} is empty", f"write one into {file}")
    return message


def open_checked(path: Path, no_verify: bool) -> Bundle:
    """Open a bundle and check every byte of it, unless told not to."""
    bundle = open_bundle(path)
    if no_verify:
        return bundle
    total, done = sum(entry.size for entry in bundle.manifest.files.values()), 0
    with bytes_progress() as update:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            update("checking", done, total)

        bundle.verify(advance)
    return bundle


def open_role(bundle: Bundle, role: str, options: dict[str, Any]) -> Session:
    """The session of "target" or "draft", as the options of `session_options` say."""
    with ExitStack() as stack:
        bar: Callable[[str, int, int], None] | None = None

        def pushing(what: str, done: int, total: int) -> None:
            nonlocal bar
            if bar is None:
                bar = stack.enter_context(bytes_progress())
            bar(what, done, total)

        return open_session(
            bundle,
            role,
            options["backend"],
            widths=parse_width_option(options["widths"], bundle),
            whole=options["widths"] == "bundle",
            threads=options["threads"],
            provider=options["provider"],
            soc=options["soc"],
            precision=options["precision"],
            phone=replace(phone_of(options), progress=pushing),
        )


def answer_text(bundle: Bundle, codec: TextCodec, options: dict[str, Any]) -> AnswerText:
    return AnswerText(codec, options["stop"], bundle.manifest.tokenizer.stop_tokens)


def open_decoder(bundle: Bundle, codec: TextCodec, answer: AnswerText, options: dict[str, Any]) -> Decoder:
    """A decoder as the options of all groups of this file say; target and draft run on the same backend.

    `answer` follows what the decoder emits. `logprobs` may be among the options.
    """
    take_authors(bundle, options)
    sampling = take_sampling(options)
    verifier = make_verifier(options["verifier"], sampling.seed)
    name = _drafter_name(bundle, options)
    # What was typed is checked before a model is loaded, or pushed to a phone.
    check_tree(options["tree_size"], options["widths"], bundle)
    open_draft = partial(open_role, bundle, "draft", options)
    make = _drafter(name, bundle, codec, options, open_draft, sampling, verifier)
    decode = DecodeOptions(
        max_tokens=options["max_tokens"],
        tree_size=DEFAULT_TREE_SIZE if options["tree_size"] is None else options["tree_size"],
        stops=frozenset(bundle.manifest.tokenizer.stop_tokens),
        logprobs=options.get("logprobs"),
        sampling=sampling,
    )
    target = open_role(bundle, "target", options)
    draft = None
    if wants_tuned(options):
        site = site_of(place_of(bundle, options, target), options["threads"], target)
        draft = tuned_drafter(bundle, site, target, open_draft, sampling)
    draft = draft or Draft(
        make(),
        1 if name == PLAIN else _tree_size(options["tree_size"], target),
        options["tree_depth"],
    )
    decode = replace(decode, tree_size=draft.size, tree_depth=draft.depth)
    return Decoder(target, draft.drafter, decode, verifier, answer.ends)


def check_tree(asked: int | None, widths: str | None, bundle: Bundle, name: str = "--widths") -> None:
    """Raise UsageError for a tree that does not fit the graphs that the option `name` was typed for; those of
    the bundle are for the decoder to say."""
    given = None if widths == "bundle" else parse_width_option(widths, bundle, name)
    if asked is not None and given is not None and asked > given[-1]:
        raise UsageError(
            f"--tree-size {asked} is wider than {name} {widths}",
            f"use --tree-size {given[-1]} or less, or a wider {name}",
        )


def _tree_size(asked: int | None, target: Session) -> int:
    return min(DEFAULT_TREE_SIZE, target.spec.tree_width) if asked is None else asked


def _drafter_name(bundle: Bundle, options: dict[str, Any]) -> str:
    asked: str | None = options["draft"]
    if options["plain"]:
        if asked not in (None, PLAIN):
            raise UsageError(f"--plain and --draft {asked} contradict each other", "leave one out")
        asked = PLAIN
    if asked == PLAIN:
        for name, value in (("--tree-size", options["tree_size"]), ("--tree-depth", options["tree_depth"])):
            if value not in (None, 1):
                raise UsageError(f"plain decoding has no use for {name} {value}", "leave it out")
        return asked
    if options["verifier"] != "match":
        if bundle.draft is None:
            raise UsageError(
                f"--verifier {options['verifier']} needs draws from a draft model, {bundle.path} has none",
                "leave it out: match is exact for every tree; or export again with `--draft CHECKPOINT`",
            )
        if asked is None:
            return "sampled"
    return asked or default_drafter(bundle)


def _drafter(
    name: str,
    bundle: Bundle,
    codec: TextCodec,
    options: dict[str, Any],
    open_draft: Callable[[], Session],
    sampling: Sampling,
    verifier: Verifier,
) -> Callable[[], Drafter]:
    """Makes the drafter, once everything about it has been checked that needs no model."""
    if name not in (PLAIN, *WITHOUT_MODEL):
        bundle.model("draft")
    knobs = parse_knobs(name, options["draft_option"])
    corpus: list[list[int]] = []
    if options["corpus"] is not None:
        if not name.startswith("lookup"):
            raise UsageError(f"--corpus is of no use to the drafter {name}", "add --draft lookup")
        corpus = [codec.encode_plain(read_text(options["corpus"], "corpus"))]
    return partial(
        make_drafter,
        name,
        bundle,
        open_draft,
        sampling=sampling,
        verifier=verifier,
        table=knobs.of(TableKnobs).acceptance,
        corpus=corpus,
        knobs=knobs,
    )
