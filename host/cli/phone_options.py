"""Options of the commands that use a phone, and the table of chips they look it up in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hexgraft.export.htp.soc import Soc, find_soc
from hexgraft.host.adb.facts import PhoneFacts
from hexgraft.host.adb.phone import ROOT
from hexgraft.host.cli.typed import typed_options
from hexgraft.models.errors import UsageError

Command = Callable[..., Any]

_PHONES = ("device",)
_USES = {
    "serial": _PHONES,
    "root": _PHONES,
    "no_stay_awake": _PHONES,
    "cool_to": _PHONES,
    "cool_timeout": _PHONES,
    "reconnect": _PHONES,
    "provider": ("cpu", "runner", "device"),
    "threads": ("cpu", "runner", "device"),
}
"""The backends that have a use for an option."""


def phone_options(command: Command) -> Command:
    """--serial and --root."""
    command = click.option(
        "--root",
        envvar="HEXGRAFT_DEVICE_ROOT",
        default=ROOT,
        show_default=True,
        help="Our folder on the phone.",
    )(command)
    return click.option(
        "-s",
        "--serial",
        envvar="ANDROID_SERIAL",
        help="Which phone. Default: $ANDROID_SERIAL, or the only one.",
    )(command)


def build_options(command: Command) -> Command:
    """--soc and --precision, which choose among the builds of a bundle."""
    command = click.option(
        "--precision", help="Which of several builds for the NPU, by its precision. Default: the first."
    )(command)
    return click.option(
        "--soc",
        callback=lambda context, parameter, name: find_soc(name).name if name else None,
        help="Which of several builds for the NPU, by its chip. Default: the phone's, or the first.",
    )(command)


def refuse_unused(*backends: str) -> None:
    """Raise UsageError for an option that was typed and that none of `backends` has a use for; what stands in
    the environment is there for other runs."""
    for name, option in typed_options().items():
        uses = _USES.get(name, backends)
        if not set(uses) & set(backends):
            raise UsageError(
                f"--backend {backends[0]} has no use for {option}",
                f"leave it out, or use --backend {uses[0]}",
            )


def build_where_it_is(*sides: dict[str, Any]) -> None:
    """Of several sides that are compared, let only those on an NPU have --soc and --precision."""
    on_npu = [side["backend"] == "htp-sim" or side["provider"] == "htp" for side in sides]
    for side, npu in zip(sides, on_npu, strict=True):
        if any(on_npu) and not npu:
            side |= {"soc": None, "precision": None}


def _soc(facts: PhoneFacts) -> Soc | None:
    for name in filter(None, (facts.soc, facts.board)):
        try:
            return find_soc(name)
        except UsageError:
            continue
    return None


def chip(facts: PhoneFacts) -> str | None:
    """The chip and its Hexagon version as messages name it, None if the table does not have it."""
    found = _soc(facts)
    return found.title if found else None


def soc_model(facts: PhoneFacts) -> int | None:
    """The number QAIRT knows the chip by, None if the table does not have it."""
    found = _soc(facts)
    return found.soc_model if found else None
