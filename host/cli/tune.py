"""`hexgraft tune`: measures, predicts, verifies, and keeps the tree that pays here; or foretells another
place's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.bench import take_profile
from hexgraft.host.cli.console import token_progress
from hexgraft.host.cli.lab import encoder, take_drafters, take_prompts
from hexgraft.host.cli.options import (
    open_checked,
    open_role,
    sampling_options,
    session_options,
    take_sampling,
    verify_option,
)
from hexgraft.host.cli.place import place_of
from hexgraft.host.cli.tune_report import show_chosen, show_foreseen
from hexgraft.host.cli.tuned import site_of
from hexgraft.host.cli.typed import typed_options
from hexgraft.host.decode import DecodeOptions
from hexgraft.host.lab.comparison import Transcript, check_prompts, transcribe
from hexgraft.host.lab.prompts import CATEGORIES, LabPrompt
from hexgraft.host.measure.choice import check_kept, write_choice
from hexgraft.host.measure.contest import Contest
from hexgraft.host.measure.costs import Costs
from hexgraft.host.measure.decision import decide
from hexgraft.host.measure.latency import Plan
from hexgraft.host.measure.metered import Metered
from hexgraft.host.measure.probe import probe
from hexgraft.host.measure.profile import LatencyProfile
from hexgraft.host.measure.setting import TRIED, beginnings, maker, usable_drafters
from hexgraft.host.measure.shipped import find_profile
from hexgraft.host.measure.trial import Bench, with_widths
from hexgraft.host.measure.tune import Guess, Search
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import Session
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import UsageError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--prompts", type=click.Path(path_type=Path), help="A file of your own: a prompt a line.")
@click.option(
    "--per-category",
    default=1,
    show_default=True,
    type=click.IntRange(1, 5),
    help="Without --prompts: how many of the lab's prompts of each kind.",
)
@click.option(
    "--max-tokens", default=64, show_default=True, type=click.IntRange(min=4), help="Tokens a prompt."
)
@click.option("--drafters", help="Names, comma separated. Default: all that fit the bundle.")
@click.option(
    "--verify",
    "verified",
    default=2,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many of the best settings to run beside plain decoding, each as it is and kept to what pays.",
)
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="How often to run them."
)
@click.option(
    "--profile",
    metavar="FILE",
    help="Foretell only, with the table of another place: a file of `hexgraft bench -o`, or the name of one "
    "that comes with hexgraft.",
)
@click.option("--no-write", is_flag=True, help="Choose, but leave what `run` does as it is.")
@sampling_options
@session_options
@verify_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tune(bundle: Path, **options: Any) -> None:
    """Choose how to draft for BUNDLE here, and have `run` and `chat` do so from now on.

    Passes are measured (as `hexgraft bench` does), every drafter and tree is tried on plainly decoded
    prompts, the best drafters are probed, and the best few trees are run beside plain decoding. Plain
    decoding is chosen where no tree brings 5 % or more. A choice holds for this bundle, backend,
    provider, --widths, --threads, machine or phone, on an NPU chip and precision, and temperature.

    \b
    Examples:
      hexgraft tune smollm2
      hexgraft tune phone --backend device --provider htp --prompts mine.txt
      hexgraft tune pair --profile snapdragon-8-elite
    """
    # What was typed is checked before minutes are spent on measuring.
    typed = typed_options()
    unused = next((typed[name] for name in ("verified", "repeats") if name in typed), None)
    if options["profile"] is not None and unused is not None:
        raise UsageError(
            f"--profile foretells and runs nothing: it has no use for {unused}",
            f"leave out {unused} or --profile",
        )
    prompts = _prompts(options["prompts"], options["per_category"])
    sampling = take_sampling(options)
    opened = open_checked(bundle, options["no_verify"])
    asked: str | None = options["drafters"]
    names = TRIED if asked is None else take_drafters(asked, opened, TRIED)
    check_prompts(prompts, encoder(TextCodec(opened)), opened.target.context)
    foreign = find_profile(options["profile"]) if options["profile"] is not None else None
    if foreign is None and not options["no_write"]:
        check_kept()
    profile = foreign or take_profile(opened, options | {"cool_to": 45.0, "cool_timeout": 120.0}, Plan())
    kitchen = _prepare(opened, options, profile, sampling, prompts)
    if not kitchen.search.sizes:
        raise UsageError(
            "there is no graph a tree fits in: the widths are "
            + ", ".join(map(str, kitchen.search.costs.target.widths)),
            "choose others with --widths, or export with other --widths",
        )
    guesses = _search(kitchen, names)
    if foreign is not None:
        foreseen = kitchen.search.adapted(guesses[0])
        show_foreseen(foreign, opened, kitchen.search, guesses, foreseen, as_json=options["as_json"])
        return
    answered = [transcript.prompt for transcript in kitchen.transcripts]
    contest = Contest(kitchen.target, answered, kitchen.decode, options["repeats"])
    with token_progress("probing", None) as advance:
        contest.progress = partial(advance, 1)
        probe(kitchen.search, contest)
    guesses = kitchen.search.ranking()
    best = guesses[: options["verified"]]
    adapted = [kitchen.search.adapted(guess) for guess in best]
    with token_progress("verifying", contest.runs(len(best) + len(adapted))) as advance:
        contest.progress = partial(advance, 1)
        verdict = decide(kitchen.search, contest, best, adapted)
    path = None
    try:
        if not options["no_write"]:
            site = site_of(place_of(opened, options, kitchen.target), options["threads"], kitchen.target)
            path = write_choice(site, profile, verdict.choice)
    finally:  # what took minutes is shown even where it cannot be kept
        show_chosen(kitchen.search, guesses, verdict, path, as_json=options["as_json"])


@dataclass(slots=True)
class _Kitchen:
    """Everything a search is made of."""

    target: Session
    draft: Metered | None
    sampling: Sampling
    decode: DecodeOptions
    transcripts: list[Transcript]
    search: Search


def _prepare(
    bundle: Bundle,
    options: dict[str, Any],
    profile: LatencyProfile,
    sampling: Sampling,
    prompts: list[LabPrompt],
) -> _Kitchen:
    target = open_role(bundle, "target", options)
    draft = None
    if bundle.draft is not None:
        draft = Metered(open_role(bundle, "draft", options), keep=True)
    stops = frozenset(bundle.manifest.tokenizer.stop_tokens)
    decode = DecodeOptions(options["max_tokens"], 1, stops=stops, sampling=sampling)
    transcripts = []
    with token_progress("decoding plainly", len(prompts)) as advance:
        for transcript in transcribe(target, prompts, encoder(TextCodec(bundle)), decode):
            transcripts.append(transcript)
            advance(1)
    costs = Costs.of(profile)
    # Trees are as wide as the table's graphs are, whatever runs here.
    widths = costs.target.widths if costs.target.padded else None
    widest = costs.target.widths[-1] if costs.target.padded else target.spec.tree_width
    bench = Bench(with_widths(target.spec, widths, widest), transcripts, decode, draft)
    search = Search(bench, costs, maker(bundle, sampling), partial(_opened, draft))
    return _Kitchen(target, draft, sampling, decode, transcripts, search)


def _opened(draft: Metered | None) -> Session:
    if draft is None:
        raise UsageError("this bundle has no draft model", "use --drafters lookup")
    return draft


def _prompts(file: Path | None, per_category: int) -> list[LabPrompt]:
    if file is not None:
        if "per_category" in typed_options():
            raise UsageError(
                "--per-category chooses among the built-in prompts", "leave out --per-category or --prompts"
            )
        return take_prompts(file, ())
    every = take_prompts(None, ())
    return [p for c in CATEGORIES for p in [each for each in every if each.category == c][:per_category]]


def _search(kitchen: _Kitchen, names: Sequence[str]) -> list[Guess]:
    """All guesses, the fastest first."""
    search = kitchen.search
    found = usable_drafters(search.make, search.open_draft, names)
    if not found:
        raise UsageError(f"none of --drafters {','.join(names)} fits this bundle", "leave out --drafters")
    begun = sum(len(beginnings(name)) for name in found)
    with token_progress("trying settings", begun * len(search.sizes)) as advance:
        search.progress = lambda title: advance(1)
        guesses = search.run(found, search.sizes)
    if not guesses:
        raise UsageError(
            "the profile has no times of a draft model, which these drafters need", "use --drafters lookup"
        )
    return guesses
