"""`hexgraft devices`: the phones adb sees, what they are and how they are."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.table import Table

from hexgraft.host.adb.choice import advice
from hexgraft.host.adb.errors import DeviceError
from hexgraft.host.adb.facts import PhoneFacts, gather
from hexgraft.host.adb.phone import Phone
from hexgraft.host.adb.push import megabytes
from hexgraft.host.adb.server import Listed, Server
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.phone_options import chip, phone_options
from hexgraft.models.errors import NO_DEVICE


@click.command()
@phone_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with every fact.")
def devices(serial: str | None, root: str, as_json: bool) -> int:
    """List the phones adb sees: chip, Android, memory, space, temperature.

    Says what to do about those that are not ready, and exits with 4 if none can be used.
    """
    server = Server()
    listed = [entry for entry in server.devices() if serial in (None, entry.serial)]
    found = [(entry, _facts(server, entry, root)) for entry in listed]
    if as_json:
        print_json([_as_dict(entry, facts) for entry, facts in found])
    elif found:
        _show(found)
    if not any(facts for _, facts in found):
        say("no phone can be used" if found else "adb sees no phone; without one: hexgraft device loopback")
        return NO_DEVICE
    return 0


def _facts(server: Server, entry: Listed, root: str) -> PhoneFacts | None:
    if not entry.ready or "shell_v2" not in server.features(entry):
        return None
    try:
        return gather(Phone(server, entry, root))
    except DeviceError as error:
        say(f"warning: {error.message}")
        return None


def _as_dict(entry: Listed, facts: PhoneFacts | None) -> dict[str, Any]:
    known = msgspec.to_builtins(facts) if facts else None
    return {
        "serial": entry.serial,
        "state": entry.state,
        "model": entry.model,
        "chip": chip(facts) if facts else None,
        "facts": known,
    }


def _show(found: list[tuple[Listed, PhoneFacts | None]]) -> None:
    table = Table("serial", "model", "chip", "Android", "memory free", "space free", "warmest", box=None)
    for entry, facts in found:
        if facts is None:
            state = entry.state.split(";")[0]
            table.add_row(
                entry.serial, entry.model or "-", state if not entry.ready else "Android older than 7"
            )
            continue
        table.add_row(
            entry.serial,
            facts.model,
            (chip(facts) or facts.soc or "unknown").split(" (")[0],
            facts.android or "no: " + facts.target,
            megabytes(facts.memory_free) if facts.memory_free else "-",
            megabytes(facts.space_free) if facts.space_free else "-",
            f"{facts.hottest.degrees:.0f} °C" if facts.hottest else "-",
        )
    stdout().print(table)
    for entry, _ in found:
        if not entry.ready:
            say(f"{entry.serial} is {entry.state.split(';')[0]}: {advice(entry.state)}")
