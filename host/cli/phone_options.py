"""Options of the commands that use a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from hexgraft.host.adb.phone import ROOT

Command = Callable[..., Any]


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
