"""`hexgraft push`: a bundle and the runner onto a phone."""

from __future__ import annotations

from pathlib import Path

import click

from hexgraft.host.adb.fit import Asked
from hexgraft.host.adb.push import megabytes
from hexgraft.host.adb.session import PROVIDERS, DeviceOptions, DevicePlace
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cli.console import bytes_progress, print_json, say
from hexgraft.host.cli.interrupt import resumable
from hexgraft.host.cli.phone_options import build_options, phone_options, soc_model
from hexgraft.host.counted import counted
from hexgraft.models.errors import UsageError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@phone_options
@click.option(
    "--provider",
    type=click.Choice(PROVIDERS),
    default="cpu",
    show_default=True,
    help="What will compute there: htp takes the NPU's libraries along.",
)
@build_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@resumable()
def push(
    bundle: Path,
    serial: str | None,
    root: str,
    provider: str,
    soc: str | None,
    precision: str | None,
    as_json: bool,
) -> None:
    """Put BUNDLE, the runner and its libraries on a phone, and print the bundle's folder there.

    Only what is missing moves. A broken push goes on where it stopped, and every file is checked by its
    sha256 on the phone before it counts. Other commands push by themselves what they need.
    """
    opened = open_bundle(bundle)
    if (soc or precision) and provider != "htp":
        raise UsageError(
            f"--{'soc' if soc else 'precision'} chooses a build for the NPU", "add --provider htp"
        )
    asked = Asked(soc, precision)
    with bytes_progress() as update:
        place = DevicePlace(
            opened, DeviceOptions(serial, root, provider, asked=asked, progress=update, soc_model=soc_model)
        )
        done = place.push()
    path = f"{place.phone.root}/{place.folder.name}"
    if as_json:
        print_json(
            {
                "path": path,
                "serial": place.phone.serial,
                "files": done.files,
                "sent": done.sent,
                "seconds": round(done.seconds, 3),
                "links_lost": done.lost,
            }
        )
        return
    if done.sent:
        rate = megabytes(round(done.sent / max(done.seconds, 1e-9)))
        lost = f", link lost {counted(done.lost, 'time')}" if done.lost else ""
        files, sent = counted(done.files, "file"), megabytes(done.sent)
        say(f"pushed {files}, {sent} in {done.seconds:.1f} s ({rate}/s{lost})")
    else:
        say(f"nothing to push: {place.phone.name} has all of it")
    click.echo(path)
