"""`hexgraft import`: a bundle out of what Qualcomm AI Hub's own tools exported."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hexgraft.export.foreign.importer import ImportOptions, import_bundle
from hexgraft.export.writer import Step
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cli.console import bytes_progress, print_json, say
from hexgraft.host.cli.export import parse_widths


@click.command("import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The bundle folder to write."
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="A folder with the model's config.json and tokenizer.json, where FOLDER has none.",
)
@click.option(
    "--context-length",
    type=click.IntRange(min=2),
    help="Columns CL of the graphs to take, where there are several. Default: the most.",
)
@click.option("--widths", help="Rows a pass of the graphs to take: 1,128. Default: all.")
@click.option("--soc", help="The chip the binaries are for, where they do not say.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_command(
    folder: Path,
    output: Path,
    checkpoint: Path | None,
    context_length: int | None,
    widths: str | None,
    soc: str | None,
    as_json: bool,
) -> None:
    """Make a bundle of FOLDER, a language model as Qualcomm AI Hub's tools export it.

    FOLDER holds context binaries (.bin) or ONNX graphs (.onnx), config.json and tokenizer.json. Graphs are
    taken as they are: parts, quantised K/V, and a cache of CL - T columns at T rows. The bundle's cache has
    CL slots less the widest graph's rows; narrower --widths leave more.

    \b
    Examples:
      hexgraft import llama_v3_2_1b_instruct-genie-w4a16 -o llama
      hexgraft import llama_v3_2_1b_instruct-genie-w4a16 -o llama --context-length 2048 --widths 1,32
    """
    start = time.monotonic()
    rows = parse_widths(widths) if widths is not None else None
    with bytes_progress() as update:

        def report(step: Step) -> None:
            update(step.what, step.done, step.total)

        options = ImportOptions(context_length, rows, checkpoint, soc)
        import_bundle(folder, output, options=options, report=report, say=say)
    bundle = open_bundle(output)
    size = sum(entry.size for entry in bundle.manifest.files.values())
    if as_json:
        print_json({"bundle": str(output), "digest": bundle.digest, "bytes": size})
        return
    say(f"imported {bundle.target.name} in {time.monotonic() - start:.1f} s: {size / 1e6:.0f} MB")
    click.echo(output)
