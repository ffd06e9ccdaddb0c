"""`hexgraft genie`: a folder that Qualcomm's Genie loads, out of a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from hexgraft.export.foreign.genie import GenieOptions, write_genie
from hexgraft.export.htp.soc import find_soc
from hexgraft.host.cli.console import print_json, say
from hexgraft.host.cli.options import open_checked


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option(
    "--soc",
    callback=lambda context, parameter, name: find_soc(name).name if name else None,
    help="Which of several builds, by its chip. Default: the first.",
)
@click.option("--precision", help="Which of several builds, by its precision. Default: the first.")
@click.option(
    "--width",
    type=click.IntRange(min=1),
    help="The one width of hexgraft's own layout that Genie is to use. Default: the narrowest.",
)
@click.option("--no-verify", is_flag=True, help="Do not read the bundle's files to check their sha256.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def genie(
    bundle: Path,
    output: Path,
    soc: str | None,
    precision: str | None,
    width: int | None,
    no_verify: bool,
    as_json: bool,
) -> None:
    """Write what Genie loads, out of BUNDLE: context binaries, genie_config.json, tokenizer.

    For a plain dialog on the NPU. BUNDLE must hold graphs compiled for a chip. Where libGenie.so is
    ($HEXGRAFT_GENIE, a QAIRT SDK, or onnxruntime-qnn), the config is checked by it.

    \b
    Examples:
      hexgraft genie phone -o genie
      cd genie && genie-t2t-run -c genie_config.json -p "Hello."     # on the device
    """
    opened = open_checked(bundle, no_verify)
    written = write_genie(opened, output, GenieOptions(soc, precision, width))
    if as_json:
        library = str(written.library) if written.library is not None else None
        print_json(
            {
                "folder": str(output),
                "widths": list(written.widths),
                "context_length": written.columns,
                "checked_by": library,
            }
        )
        return
    rows = ", ".join(map(str, written.widths))
    say(f"graphs of {rows} rows over {written.columns} columns")
    if len(written.widths) == 1 and len(opened.target.widths) > 1:
        say("note: of hexgraft's own layout Genie reads one width right; --width chooses another")
    if written.library is None:
        say("note: there is no libGenie.so here to check the config: set HEXGRAFT_GENIE to it")
    else:
        say(f"{written.library.name} accepts the config")
    click.echo(output)
