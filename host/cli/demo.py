"""`hexgraft demo`: the main job on a real model, from download to the proof that trees change nothing but
speed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import click
import numpy as np

from hexgraft.export.writer import ExportOptions, Step, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.console import bytes_progress, print_json, say, stdout, token_progress
from hexgraft.host.cli.demo_prompts import PROMPTS
from hexgraft.host.cli.table import Table
from hexgraft.host.cli.threads import threads_option
from hexgraft.host.cli.tree_view import draw_round
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder, Round
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.session import Session, causal
from hexgraft.host.stats import Stats
from hexgraft.host.text import TextCodec
from hexgraft.models.attention import CHOSEN
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import FAILED, BundleError
from hexgraft.models.fetch import fetch_smollm2
from hexgraft.models.head_checkpoint import open_draft
from hexgraft.models.shipped_heads import (
    SMOLLM2_HEAD,
    SMOLLM2_HEAD_PRECISION,
    SMOLLM2_PAIR,
    shipped_origin,
)
from hexgraft.models.user_folders import cache_folder

WIDTH = 16
SIZE = 8
"""Nodes of a tree where any width will do: what a CPU reads in little more time than one."""
DRAFTER = "lookup+levels"


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoding of one prompt."""

    tokens: list[int]
    rounds: list[Round]
    stats: Stats


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two decodings part: both tokens, and how far apart their logits are."""

    index: int
    plain: int | None
    tree: int | None
    margin: float


@click.command()
@click.option(
    "--max-tokens", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens a prompt."
)
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(max_tokens: int, threads: int, as_json: bool) -> int:
    """Fetch SmolLM2, export it with a draft head, and decode three prompts plainly and with token trees.

    The trees hold what lookup finds in the text and what the head adds. Both decodings run through the same
    width of the same graph. The verdict is `identical`, or exit code 1 with the first difference. What was
    fetched and exported before is used again.
    """
    bundle = _bundle()
    codec = TextCodec(bundle)
    free = CpuSession(bundle, threads=threads)
    fixed = CpuSession(bundle, widths=[WIDTH], share=free)
    drafting = make_drafter(DRAFTER, bundle, partial(CpuSession, bundle, "draft", threads=threads))
    stops = frozenset(bundle.manifest.tokenizer.stop_tokens)
    results: list[dict[str, Any]] = []
    best: Round | None = None
    for name, prompt in PROMPTS.items():
        ids = codec.encode_chat([{"role": "user", "content": prompt}])

        def run(session: Session, drafter: Drafter, size: int, what: str, ids: list[int] = ids) -> Decoded:
            options = DecodeOptions(max_tokens=max_tokens, tree_size=size, stops=stops)
            return _decode(Decoder(session, drafter, options), ids, what)

        narrow = run(free, NoDraft(), 1, f"{name}: plain, width 1")
        plain = run(fixed, NoDraft(), 1, f"{name}: plain, width {WIDTH}")
        tree = run(fixed, drafting, WIDTH, f"{name}: trees, width {WIDTH}")
        adaptive = run(free, drafting, SIZE, f"{name}: trees, any width")
        results.append(_result(name, fixed, ids, (narrow, plain, tree, adaptive)))
        best = max((r for r in (best, *tree.rounds) if r), key=_worth_drawing)
    same = all(result["difference"] is None for result in results)
    if as_json:
        print_json({"bundle": bundle.digest, "prompts": results, "identical": same})
    else:
        _show(results, best, codec)
    return 0 if same else FAILED


def _bundle() -> Bundle:
    """The demonstration bundle, exported unless a whole one of this version and head is in the cache."""
    path = cache_folder() / "bundles" / SMOLLM2_PAIR
    if path.exists() and (kept := _kept(path)) is not None:
        return kept
    checkpoint = open_checkpoint(fetch_smollm2(progress=say))
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"exporting {checkpoint.name} to {path}")
    with bytes_progress() as update:

        def report(step: Step) -> None:
            update(step.what, step.done, step.total)

        head = open_draft(Path(SMOLLM2_HEAD), checkpoint)
        options = ExportOptions(draft_precision=SMOLLM2_HEAD_PRECISION, attention=CHOSEN)
        export_bundle(checkpoint, path, draft=head, options=options, report=report)
    return open_bundle(path)


def _kept(path: Path) -> Bundle | None:
    """The bundle in the cache; None once it is removed, where its head is no longer the one that hexgraft
    comes with."""
    try:
        bundle = open_bundle(path)
        head = bundle.manifest.provenance.get("draft")
        made = None if head is None else (head.checkpoint, bundle.graph("draft", "cpu").precision)
        if made == (shipped_origin(SMOLLM2_HEAD), SMOLLM2_HEAD_PRECISION):
            bundle.verify()
            say(f"using the bundle exported before: {path}")
            return bundle
    except BundleError as error:
        raise BundleError(
            f"the cached {error.message}", f"remove it and run again: rm -r {quote(str(path))}"
        ) from error
    say("the draft head is another than in the bundle exported before, which is removed")
    shutil.rmtree(path)
    return None


def _decode(decoder: Decoder, ids: list[int], what: str) -> Decoded:
    with token_progress(what, decoder.options.max_tokens) as advance:
        decoder.begin(ids)
        rounds = []
        for current in decoder.rounds():
            rounds.append(current)
            advance(len(current.tokens))
    return Decoded(decoder.tokens[len(ids) :], rounds, decoder.stats)


def _result(name: str, session: Session, ids: list[int], runs: tuple[Decoded, ...]) -> dict[str, Any]:
    narrow, plain, tree, adaptive = runs
    difference = first_difference(session, ids, plain.tokens, tree.tokens)
    return {
        "prompt": name,
        "tokens": len(plain.tokens),
        "plain_width_1": round(narrow.stats.tokens_per_second, 2),
        f"plain_width_{WIDTH}": round(plain.stats.tokens_per_second, 2),
        f"tree_width_{WIDTH}": round(tree.stats.tokens_per_second, 2),
        "tree_any_width": round(adaptive.stats.tokens_per_second, 2),
        "tokens_per_round": round(tree.stats.tokens_per_round, 3),
        "speedup": round(adaptive.stats.tokens_per_second / narrow.stats.tokens_per_second, 3),
        "difference": None
        if difference is None
        else {
            "index": difference.index,
            "plain": difference.plain,
            "tree": difference.tree,
            "margin": difference.margin,
        },
        "width_1_equals": narrow.tokens == plain.tokens == adaptive.tokens,
    }


def first_difference(
    session: Session, prompt: list[int], plain: list[int], tree: list[int]
) -> Difference | None:
    """Where two greedy decodings of one prompt part, with the margin between their tokens by plain
    decoding."""
    if plain == tree:
        return None
    index = next(
        (i for i, (a, b) in enumerate(zip(plain, tree, strict=False)) if a != b), min(len(plain), len(tree))
    )
    a = plain[index] if index < len(plain) else None
    b = tree[index] if index < len(tree) else None
    if a is None or b is None:
        return Difference(index, a, b, float("nan"))
    text = [*prompt, *plain[:index]]
    session.reset()
    width = session.spec.max_width
    for start in range(0, len(text), width):
        chunk = text[start : start + width]
        rows = session.forward(chunk, range(start, start + len(chunk)), causal(start, len(chunk)))
        session.store(range(len(chunk)), range(start, start + len(chunk)))
    logits = rows.logits(len(chunk) - 1)
    return Difference(index, a, b, float(np.abs(logits[a] - logits[b])))


def _worth_drawing(current: Round) -> tuple[bool, int]:
    """A tree that branches and was accepted for a while says more than a long chain."""
    branches = any(len(current.tree.children(node)) > 1 for node in range(len(current.tree)))
    return branches and len(current.tokens) > 2, len(current.tokens)


def _show(results: list[dict[str, Any]], best: Round | None, codec: TextCodec) -> None:
    out = stdout()
    if best is not None:
        out.print(f"A round that emitted {len(best.tokens)} tokens in one target pass:\n")
        out.print(draw_round(best, codec.token))
        out.print()
    table = Table("prompt", title="tokens/s", title_justify="left")
    for column in ("plain, width 1", f"plain, width {WIDTH}", f"trees, width {WIDTH}", "trees, any width"):
        table.add_column(column, justify="right")
    table.add_column("tokens a round", justify="right")
    table.add_column("speed-up", justify="right")
    for r in results:
        speeds = (
            r["plain_width_1"],
            r[f"plain_width_{WIDTH}"],
            r[f"tree_width_{WIDTH}"],
            r["tree_any_width"],
        )
        table.add_row(
            r["prompt"], *(f"{s:.1f}" for s in speeds), f"{r['tokens_per_round']:.2f}", f"{r['speedup']:.2f}x"
        )
    out.print(table)
    out.print("Speed-up: trees at any width over plain decoding at width 1.")
    out.print("Below 1, trees cost more than they brought: `hexgraft tune` keeps to what pays.\n")
    for r in results:
        out.print(f"{r['prompt']}: {_verdict(r, codec)}")


def _verdict(result: dict[str, Any], codec: TextCodec) -> str:
    difference = result["difference"]
    if difference is not None:
        plain, tree = (
            "the end" if difference[k] is None else repr(codec.token(difference[k]))
            for k in ("plain", "tree")
        )
        return (
            f"DIFFERENT at token {difference['index']}: plain says {plain}, trees say {tree}, "
            f"margin {difference['margin']:.2e}"
        )
    other = "also" if result["width_1_equals"] else "but not"
    return f"identical: {result['tokens']} tokens ({other} between width 1 and width {WIDTH})"
