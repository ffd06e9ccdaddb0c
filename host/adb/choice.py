"""Which phone: the one named, or the only one that can be used; otherwise one screen that says what to do."""

from __future__ import annotations

import time

from hexgraft.host.adb.errors import NoDevice
from hexgraft.host.adb.server import Listed, Server
from hexgraft.host.adb.shell import quote

_PASSING = ("offline", "connecting", "authorizing")
_STATES = {
    "unauthorized": "unlock it and accept the prompt `Allow USB debugging`",
    "offline": "unplug it and plug it in again, or switch USB debugging off and on",
    "connecting": "wait a moment and run the command again",
    "authorizing": "unlock it and accept the prompt `Allow USB debugging`",
    "recovery": "start Android on it: adb reboot",
    "sideload": "start Android on it: adb reboot",
    "bootloader": "start Android on it: fastboot reboot",
}
_PERMISSIONS = (
    "this user may not open the USB device; Debian: apt-get install android-sdk-platform-tools-common, "
    "then plug it in again"
)
_NONE = (
    "switch on USB debugging (Settings, Developer options), plug the phone in and accept its prompt; "
    "without a phone: hexgraft device loopback"
)


def choose(server: Server, serial: str | None, patience: float) -> Listed:
    """The phone to use. States that pass by themselves are waited for, `patience` seconds at most."""
    deadline = time.monotonic() + patience
    while True:
        listed = server.devices()
        found = pick(listed, serial)
        if isinstance(found, Listed) and found.ready:
            return found
        waiting = isinstance(found, Listed) and found.state in _PASSING
        if not waiting or time.monotonic() >= deadline:
            raise complain(found) if isinstance(found, Listed) else found
        time.sleep(0.25)


def meant(listed: list[Listed], serial: str) -> list[Listed]:
    """Those that a serial, or a number of the list, names."""
    return [entry for entry in listed if serial in (entry.serial, str(entry.transport_id))]


def pick(listed: list[Listed], serial: str | None) -> Listed | NoDevice:
    """The phone meant, in whatever state, or the error that says why there is none."""
    if serial is not None:
        named = meant(listed, serial)
        if len(named) == 1:
            return named[0]
        if len(named) > 1:
            return NoDevice(
                f"{len(named)} phones have the serial {serial}",
                "choose one by its number: --serial NUMBER",
                table(named),
            )
        hint = f"use one of these: --serial {quote(listed[0].serial)}" if listed else _NONE
        return NoDevice(f"there is no phone with the serial {serial}", hint, table(listed))
    if not listed:
        return NoDevice("adb sees no phone", _NONE)
    ready = [entry for entry in listed if entry.ready]
    if len(ready) == 1:
        return ready[0]
    if len(listed) == 1:
        return listed[0]
    if not ready:
        return NoDevice(f"none of {len(listed)} phones can be used", advice(listed[0].state), table(listed))
    first = quote(ready[0].serial)
    return NoDevice(
        f"there are {len(ready)} phones",
        f"choose one: --serial {first}, or export ANDROID_SERIAL={first}",
        table(listed),
    )


def complain(entry: Listed) -> NoDevice:
    """Why this one phone cannot be used."""
    name = f"{entry.model} ({entry.serial})" if entry.model else entry.serial
    return NoDevice(f"the phone {name} is {entry.state.split(';')[0]}", advice(entry.state))


def advice(state: str) -> str:
    """What to do about a state."""
    if state.startswith("no permissions"):
        return _PERMISSIONS
    return _STATES.get(state, "see what `adb devices -l` says of it")


def table(listed: list[Listed]) -> list[str]:
    """The list as a screen shows it, a line each: serial, state, model and number."""
    rows = [
        (entry.serial, entry.state.split(";")[0], entry.model or "-", str(entry.transport_id or "-"))
        for entry in listed
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
