"""`hexgraft export`: from a checkpoint to a bundle."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hexgraft.export.cpu.graph import PRECISIONS
from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.writer import DEFAULT_CONTEXT, DEFAULT_WIDTHS, ExportOptions, Step, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cli.console import bytes_progress, print_json, say
from hexgraft.host.cli.htp_options import htp_options, take_htp
from hexgraft.host.cli.hub_options import hub_options, take_hub
from hexgraft.host.cli.interrupt import resumable
from hexgraft.models.attention import CHOSEN, FUSED, STACKED
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import UsageError
from hexgraft.models.head_checkpoint import open_draft


def parse_widths(text: str) -> tuple[int, ...]:
    """Ascending, distinct widths of "1,8,16"."""
    try:
        widths = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        widths = ()
    if not widths or widths[0] < 1 or widths[-1] > 1024:
        raise UsageError(
            f"--widths {text!r} is not a list of numbers from 1 to 1024", "example: --widths 1,8,16,32,128"
        )
    return widths


def parse_capacities(text: str | None) -> tuple[int, ...]:
    """Ascending, distinct capacities of "512,2048"; none of None."""
    if text is None:
        return ()
    try:
        capacities = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        capacities = ()
    if not capacities or capacities[0] < 1:
        raise UsageError(
            f"--context {text!r} is not a number of slots, or several", "example: --context 4096"
        )
    return capacities


def _attention(chosen: str, npu: bool) -> str:
    """Of the CPU's graphs, which those of the NPU are made from where there are any."""
    if npu and chosen == FUSED:
        raise UsageError(
            "the NPU's graphs are made from the CPU's, whose attention is of plain operators then",
            "leave out --cpu-attention fused or --target htp",
        )
    return FUSED if chosen == FUSED else STACKED if npu else CHOSEN


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle folder to write."
)
@click.option(
    "--draft",
    type=click.Path(path_type=Path),
    help="A smaller checkpoint with the same vocabulary, or an EAGLE head of CHECKPOINT.",
)
@click.option(
    "--widths", default=",".join(map(str, DEFAULT_WIDTHS)), show_default=True, help="Rows a pass, per graph."
)
@click.option(
    "--context",
    metavar="SLOTS",
    help=f"Cache slots. Default: {DEFAULT_CONTEXT}, or as many as the model was trained for if that is less. "
    "With --target htp several, between which the cache grows: 512,2048,8192.",
)
@click.option(
    "--cpu-precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="The CPU's graph: weights in blocks of 8 or 4 bits (w4: 8 in embedding and output matrix, with h4 4 "
    "there, too); with a8, activations in 8, which is faster.",
)
@click.option(
    "--cpu-draft-precision",
    type=click.Choice(PRECISIONS),
    help="The draft's; the tokens stay the target's. Default: --cpu-precision.",
)
@click.option(
    "--cpu-attention",
    type=click.Choice(["plain", FUSED]),
    default="plain",
    show_default=True,
    help="fused: one operator a layer, 5 to 20 % faster; with a8 trees then no longer give plain decoding's "
    "very tokens.",
)
@htp_options
@hub_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(
    checkpoint: Path,
    output: Path,
    draft: Path | None,
    widths: str,
    context: str | None,
    cpu_precision: str,
    cpu_draft_precision: str | None,
    cpu_attention: str,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Export CHECKPOINT (a GGUF file, a Hugging Face folder, or its id on the hub) to a bundle.

    The bundle appears at its name only when it is whole. With --target htp, the same command goes on where an
    interrupted one stopped.

    \b
    Examples:
      hexgraft export SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2
      hexgraft export SmolLM2-135M-Instruct.Q4_1.gguf -o small --cpu-precision w4a8
      hexgraft export Llama-3.1-8B -o llama --draft EAGLE3-Llama-3.1-8B --cpu-draft-precision w8a8
      hexgraft export Qwen/Qwen2.5-3B -o pair --draft Qwen/Qwen2.5-0.5B --context 4096
      hexgraft export SmolLM2-135M-Instruct.Q4_1.gguf -o phone --target htp --soc SM8650 --precision w8a16
      hexgraft export Llama-3.1-8B -o phone --draft EAGLE3-Llama-3.1-8B --target htp --soc SM8650
      hexgraft export SmolLM2-135M-Instruct.Q4_1.gguf -o phone --via aihub --device "Samsung Galaxy S24"
    """
    hub = take_hub(chosen)
    htp = take_htp(chosen)
    rows = parse_widths(widths)
    start = time.monotonic()
    target = open_checkpoint(checkpoint)
    capacities = parse_capacities(context) or (min(DEFAULT_CONTEXT, target.config.context),)
    options = ExportOptions(
        rows,
        capacities[-1],
        precision=cpu_precision,
        draft_precision=cpu_draft_precision,
        attention=_attention(cpu_attention, htp is not None),
    )
    if cpu_draft_precision is not None and draft is None:
        raise UsageError(
            "--cpu-draft-precision is a draft's, and there is none", "add --draft, or leave it out"
        )
    if htp is not None:
        for name, precision in (("", cpu_precision), ("-draft", cpu_draft_precision or "fp32")):
            if precision != "fp32":
                raise UsageError(
                    "the NPU's graphs are made from the CPU's in fp32",
                    f"leave out --cpu{name}-precision or --target htp",
                )
        htp = replace(htp, capacities=capacities)
    elif len(capacities) > 1:
        raise UsageError(
            "several capacities are for the NPU, the CPU's cache grows freely",
            f"use --context {capacities[-1]}, or add --target htp",
        )
    drafting = open_draft(draft, target) if draft else None
    with bytes_progress() as update:

        def report(step: Step) -> None:
            update(step.what, step.done, step.total)

        if htp is None:
            export_bundle(target, output, draft=drafting, options=options, report=report)
        else:
            with resumable():
                export_htp(
                    target,
                    output,
                    draft=drafting,
                    options=options,
                    htp=htp,
                    report=report,
                    say=say,
                    compiler=hub.compiler if hub else None,
                )
    if hub is not None and hub.dry:
        hub.show(as_json)
        return
    for one in (target, drafting) if drafting else (target,):
        for note in one.notes:
            say(f"note: {one.name}: {note}")
    bundle = open_bundle(output)
    size = sum(entry.size for entry in bundle.manifest.files.values())
    if as_json:
        print_json({"bundle": str(output), "digest": bundle.digest, "bytes": size})
        return
    say(f"exported {target.name} in {time.monotonic() - start:.1f} s: {size / 1e6:.0f} MB")
    click.echo(output)
