"""`hexgraft bake`: the cache of a system message as a file, so that no run has to compute it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hexgraft.host.atomic_file import check_free
from hexgraft.host.cli.console import print_json, say
from hexgraft.host.cli.options import (
    open_checked,
    open_role,
    session_options,
    system_options,
    take_system,
    verify_option,
)
from hexgraft.host.cli.place import place_of
from hexgraft.host.counted import counted
from hexgraft.host.drafters.head import HeadModel
from hexgraft.host.prefix import bake as bake_prefix
from hexgraft.host.prefix import has_head, system_tokens, write_prefix
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import UsageError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@system_options
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The file to write.")
@session_options
@verify_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bake(bundle: Path, output: Path, as_json: bool, **options: Any) -> None:
    """Compute the cache of a system message once, for `run` and `chat` to load with --baked.

    The file fits this very bundle, backend, --widths and --threads, on an NPU also chip and precision, and no
    other.

    \b
    Example:
      hexgraft bake smollm2 --system-file rules.txt -o rules.safetensors
      hexgraft run smollm2 --baked rules.safetensors -p "May I park here?"
    """
    check_free(output)
    system = take_system(options)
    if not system:
        raise UsageError("there is no system message to bake", "give --system TEXT or --system-file FILE")
    opened = open_checked(bundle, options["no_verify"])
    tokens = system_tokens(TextCodec(opened), system)
    session = open_role(opened, "target", options)
    reader = HeadModel(open_role(opened, "draft", options), opened) if has_head(opened) else None
    place = place_of(opened, options, session)
    write_prefix(output, bake_prefix(session, tokens, system, place, reader))
    size = output.stat().st_size
    if as_json:
        print_json({"prefix": str(output), "bundle": opened.digest, "tokens": len(tokens), "bytes": size})
        return
    say(f"baked {counted(len(tokens), 'token')}: {size / 1e6:.1f} MB")
    click.echo(output)
