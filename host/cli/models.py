"""`hexgraft models`: what is supported, which pairs fit, and what an export of a checkpoint will take."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hexgraft.export.sizes import Sizes, estimate, estimate_head
from hexgraft.export.writer import DEFAULT_CONTEXT, check_context
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.table import Table
from hexgraft.models.checkpoint import Checkpoint, open_checkpoint
from hexgraft.models.errors import UsageError
from hexgraft.models.families import FAMILIES, PAIRS
from hexgraft.models.head_checkpoint import HeadCheckpoint, open_draft
from hexgraft.models.vocabulary import fit_draft


@click.command()
@click.argument("checkpoint", required=False, type=click.Path(path_type=Path))
@click.option("--draft", type=click.Path(path_type=Path), help="Also judge this draft for CHECKPOINT.")
@click.option(
    "--context", type=click.IntRange(min=1), help=f"Cache slots. [default: {DEFAULT_CONTEXT} at most]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def models(checkpoint: Path | None, draft: Path | None, context: int | None, as_json: bool) -> None:
    """List the supported families and known pairs, or tell what exporting CHECKPOINT will take.

    \b
    Examples:
      hexgraft models
      hexgraft models Qwen2.5-3B --draft Qwen2.5-0.5B --context 4096
    """
    if checkpoint is None:
        if draft is not None:
            raise UsageError(
                "--draft goes with a CHECKPOINT", "name its target too: hexgraft models TARGET --draft DRAFT"
            )
        if context is not None:
            raise UsageError("--context goes with a CHECKPOINT", "name it, or leave out --context")
        _list(as_json)
        return
    target = open_checkpoint(checkpoint)
    found = {"target": target}
    head: HeadCheckpoint | None = None
    if draft is not None:
        opened = open_draft(draft, target)
        if isinstance(opened, HeadCheckpoint):
            head = opened
        else:
            found["draft"] = fit_draft(target, opened)
    slots = context or min(DEFAULT_CONTEXT, target.config.context)
    check_context(target, slots)
    sizes = {role: estimate(one.config, min(slots, one.config.context)) for role, one in found.items()}
    if head is not None:
        sizes["draft"] = estimate_head(head, sizes["target"])
    if as_json:
        facts = {role: _facts(one) for role, one in found.items()}
        facts |= {"draft": _head_facts(head)} if head is not None else {}
        print_json({role: facts[role] | asdict(sizes[role]) for role in facts})
        return
    for role, one in found.items():
        for note in one.notes:
            say(f"note: {role}: {note}")
        _show(role, one, sizes[role])
    if head is not None:
        for note in head.notes:
            say(f"note: draft: {note}")
        _show_head(head, sizes["draft"])
    stdout().print(
        "Estimates, of NPU binaries within a tenth. A bundle for the NPU holds the fp32 graph too."
    )


def _list(as_json: bool) -> None:
    if as_json:
        print_json({"families": [asdict(f) for f in FAMILIES], "pairs": [asdict(p) for p in PAIRS]})
        return
    families = Table("family", "config.json", "GGUF", "switches", title="families", title_justify="left")
    for family in FAMILIES:
        families.add_row(family.title, ", ".join(family.hf), ", ".join(family.gguf), family.switches)
    pairs = Table("target", "draft", "vocabulary", title="pairs that fit", title_justify="left")
    for pair in PAIRS:
        pairs.add_row(pair.target, pair.draft, pair.rows)
    stdout().print(families, pairs)
    stdout().print("Any two models of one tokenizer make a pair; `hexgraft lab` measures what it gains.")


def _facts(one: Checkpoint) -> dict[str, Any]:
    c = one.config
    return {
        "name": one.name,
        "family": c.family,
        "format": one.source_format,
        "license": one.license,
        "trained_context": c.context,
        "vocabulary": c.vocab,
        "layers": c.layers,
        "hidden": c.hidden,
        "heads": c.heads,
        "kv_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "window": c.window,
        "notes": list(one.notes),
    }


def _head_facts(head: HeadCheckpoint) -> dict[str, Any]:
    c = head.config
    return {
        "name": head.name,
        "family": c.kind,
        "format": head.source_format,
        "license": head.license,
        "trained_context": c.context,
        "vocabulary": c.layer.vocab,
        "proposes": c.rows,
        "reads_layers": list(c.features),
        "borrows": sorted(head.lent),
        "notes": list(head.notes),
    }


def _show_head(head: HeadCheckpoint, sizes: Sizes) -> None:
    c, out = head.config, stdout()
    out.print(f"[bold]draft: {head.name}[/bold]  {head.source_format}")
    out.print(
        f"{_millions(sizes.parameters)} weights of its own, proposes {c.rows} of {c.layer.vocab} "
        f"tokens, reads the target after the layers {', '.join(map(str, c.features))}"
    )
    out.print(
        f"context {sizes.context} of {c.context}: {_megabytes(sizes.cache)} of K/V; on the NPU it holds the "
        "embedding too"
    )
    out.print(_estimates(sizes, "memory it adds"))


def _show(role: str, one: Checkpoint, sizes: Sizes) -> None:
    c, out = one.config, stdout()
    window = f", window {c.window}" if c.window is not None else ""
    out.print(f"[bold]{role}: {one.name}[/bold]  {c.family}, {one.source_format}")
    out.print(
        f"{_millions(sizes.parameters)} weights, {c.layers} layers, {c.heads}/{c.kv_heads} heads of "
        f"{c.head_dim}, {c.vocab} tokens{window}"
    )
    out.print(
        f"context {sizes.context} of {c.context}: {_megabytes(sizes.cache)} of K/V; "
        f"exporting takes about {_megabytes(sizes.exporting)} of memory"
    )
    out.print(_estimates(sizes, "memory to run"))


def _estimates(sizes: Sizes, memory: str) -> Table:
    table = Table("precision", "weights", memory)
    for row in sizes.estimates:
        table.add_row(row.precision, _megabytes(row.weights), _megabytes(row.running))
    return table


def _megabytes(count: int) -> str:
    return f"{_millions(count)}B"


def _millions(count: int) -> str:
    return f"{count / 1e6:,.{0 if count >= 10e6 else 1}f} M"
