"""`hexgraft devices`: the phones adb sees, what they are and how they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import click
import msgspec

from hexgraft.host.adb.choice import advice, meant, pick
from hexgraft.host.adb.errors import DeviceError, NoDevice
from hexgraft.host.adb.facts import PhoneFacts, gather
from hexgraft.host.adb.phone import Phone, check_root
from hexgraft.host.adb.push import megabytes
from hexgraft.host.adb.server import Listed, Server
from hexgraft.host.cli.console import print_json, say, stdout
from hexgraft.host.cli.phone_options import chip, phone_options
from hexgraft.host.cli.table import Table
from hexgraft.models.errors import NO_DEVICE

_OLD = "Android older than 7"


class _Seen(NamedTuple):
    """A phone, and its facts or the reason why there are none: in a word for the table, and in full."""

    entry: Listed
    facts: PhoneFacts | None
    word: str = ""
    problem: str | None = None


@click.command()
@phone_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with every fact.")
def devices(serial: str | None, root: str, as_json: bool) -> int:
    """List the phones adb sees: chip, Android, memory, space, temperature.

    Says what to do about those that are not ready, and exits with 4 if none can be used.
    """
    check_root(root)
    server = Server()
    listed = server.devices()
    found = [_look(server, each, root) for each in (meant(listed, serial) if serial else listed)]
    if as_json:
        print_json([_as_dict(each) for each in found])
    if not found and isinstance(nothing := pick(listed, serial), NoDevice):
        raise nothing
    if not as_json:
        _show(found)
    for each in found:
        if each.problem is not None:
            say(f"{each.entry.serial} {each.problem}")
    if not any(each.facts for each in found):
        say("no phone can be used")
        return NO_DEVICE
    return 0


def _look(server: Server, entry: Listed, root: str) -> _Seen:
    """One phone that goes away, or does not answer, is no reason not to show the others."""
    state = entry.state.split(";")[0]
    if not entry.ready:
        return _Seen(entry, None, state, f"is {state}: {advice(entry.state)}")
    try:
        if "shell_v2" not in server.features(entry):
            return _Seen(entry, None, _OLD, f"has an {_OLD}: use a phone with Android 7 or newer")
        return _Seen(entry, gather(Phone(server, entry, root)))
    except DeviceError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return _Seen(entry, None, "does not answer", f"does not answer: {error.message}{hint}")


def _as_dict(seen: _Seen) -> dict[str, Any]:
    return {
        "serial": seen.entry.serial,
        "state": seen.entry.state,
        "model": seen.entry.model,
        "chip": chip(seen.facts) if seen.facts else None,
        "facts": msgspec.to_builtins(seen.facts) if seen.facts else None,
        "problem": seen.problem,
    }


def _show(found: list[_Seen]) -> None:
    table = Table("serial", "model", "chip", "Android", "memory free", "space free", "warmest", box=None)
    for entry, facts, word, _ in found:
        if facts is None:
            table.add_row(entry.serial, entry.model or "-", word)
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
