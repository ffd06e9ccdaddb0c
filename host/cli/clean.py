"""`hexgraft clean`: takes our files off a phone."""

from __future__ import annotations

from pathlib import Path

import click

from hexgraft.host.adb.claim import Claim
from hexgraft.host.adb.device_runner import restore_settings, running
from hexgraft.host.adb.errors import Busy, CommandFailed
from hexgraft.host.adb.fit import bundle_folder
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.adb.push import megabytes
from hexgraft.host.adb.store import Store
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cli.console import print_json, say
from hexgraft.host.cli.phone_options import phone_options


@click.command()
@phone_options
@click.option(
    "--keep", type=click.Path(path_type=Path), multiple=True, help="Leave this bundle there; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def clean(serial: str | None, root: str, keep: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Remove bundles, runners, unfinished files, caches and records of runs of ours from a phone.

    Nothing outside our folder is touched, but for the screen's setting where a run could not put it back.
    With --keep the runners stay too.
    """
    kept = {bundle_folder(open_bundle(path), "cpu").name for path in keep}
    phone = open_phone(serial, root)
    store = Store(phone)
    present = store.present()
    gone = [p for p in present if p.place not in kept and not (kept and p.kind == "runners")]
    if not dry_run:
        pid = running(phone)
        if pid is not None:
            raise Busy(f"a run is going on on {phone.name}: process {pid}", "wait for it to end, then clean")
        try:
            restore_settings(phone)
        except CommandFailed as error:
            say(f"warning: {error.message}; the next run tries again")
        if gone or not kept:
            with Claim(phone).hold():
                store.remove(gone)
                if not kept:
                    store.remove_root()
    size = sum(entry.size for entry in gone)
    if as_json:
        folders = [{"folder": p.place, "size": p.size, "whole": p.whole} for p in gone]
        print_json({"serial": phone.serial, "removed": not dry_run, "size": size, "folders": folders})
        return
    for entry in gone:
        state = "" if entry.whole else ", unfinished"
        say(f"{phone.root}/{entry.place}  {megabytes(entry.size)}{state}")
    verb = "would free" if dry_run else "freed"
    say(f"{verb} {megabytes(size)} in {len(gone)} folders" if gone else f"nothing of ours is on {phone.name}")
