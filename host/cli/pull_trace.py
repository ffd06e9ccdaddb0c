"""`hexgraft pull-trace`: what a phone recorded of runs, fetched from it."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from hexgraft.host.adb.errors import DeviceError
from hexgraft.host.adb.phone import open_phone
from hexgraft.host.adb.pull import Puller, run_files
from hexgraft.host.adb.run_record import read_record, words
from hexgraft.host.cli.console import bytes_progress, print_json, say
from hexgraft.host.cli.interrupt import resumable
from hexgraft.host.cli.phone_options import phone_options
from hexgraft.models.errors import UsageError


@click.command("pull-trace")
@phone_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder to put them in. Default: the present one.",
)
@click.option("--all", "everything", is_flag=True, help="Every run the phone remembers, not the last alone.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@resumable()
def pull_trace(serial: str | None, root: str, output: Path, everything: bool, as_json: bool) -> None:
    """Fetch what the phone recorded of the last run, and print its path.

    The runner writes down loads, passes with their times, errors, what the runtime logs, temperatures and
    clocks, so that a run whose link was lost can be looked into. The phone keeps the last eight runs. No text
    and no token is among it. A broken transfer goes on where it stopped with the same command.
    """
    phone = open_phone(serial, root)
    files = run_files(phone)
    if not files:
        raise DeviceError(
            f"no run has left a record on {phone.name}", "run something: hexgraft run ... --backend device"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {output}: {error.strerror}", "choose another --output") from error
    with bytes_progress() as update:
        puller = Puller(phone, output, update)
        paths = [puller.pull(file) for file in (files if everything else files[:1])]
    records = [(path, read_record(path)) for path in paths]
    if as_json:
        print_json(
            [
                {"path": str(path), "serial": phone.serial, **msgspec.to_builtins(each)}
                for path, each in records
            ]
        )
        return
    for path, record in records:
        say(words(record))
        click.echo(path)
