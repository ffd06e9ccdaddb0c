"""`hexgraft device loopback`: a phone for those who have none, on this machine's loopback interface."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click

from hexgraft.host.adb.server import find_adb
from hexgraft.host.cli.console import say
from hexgraft.host.cli.finite import Finite
from hexgraft.host.loopback.adb_server import AdbServer
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.faults import Faults
from hexgraft.host.loopback.phone import PHONES
from hexgraft.models.errors import INTERRUPTED, UsageError

_PATIENCE = 5.0
"""Seconds a command has to end when we are ended."""
_PROGRAM = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--phone", type=click.Choice(list(PHONES)), default="s24-ultra", show_default=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on. Default: a free one."
)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the phone's files here.")
@click.option("--shell", default="/bin/sh", show_default=True, help="Its shell; mksh is Android's.")
@click.option("--toybox", type=_PROGRAM, help="Its commands: Android's multi-call binary.")
@click.option("--space", type=click.IntRange(min=1), help="Size of its data partition in MB.")
@click.option("--rate", type=Finite(min=0, min_open=True), help="Speed of the link in MB/s.")
@click.option("--drop", type=Finite(min=0), multiple=True, help="Cut the link after so many MB; repeatable.")
@click.option("--refuse", is_flag=True, help="Never accept the host's key.")
@click.option("--old", is_flag=True, help="An Android before 7, without the shell protocol.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def loopback(
    phone: str,
    port: int,
    folder: Path | None,
    shell: str,
    toybox: Path | None,
    space: int | None,
    rate: float | None,
    drop: tuple[float, ...],
    refuse: bool,
    old: bool,
    command: tuple[str, ...],
) -> int:
    """Be a phone: a stand-in for Android's adbd on 127.0.0.1, to which a real adb connects.

    With COMMAND, an adb server of its own is started and connected, COMMAND runs with the phone as the only
    one, and everything ends with it; Ctrl-C is for COMMAND. Without, connect to it yourself; Ctrl-C ends it.
    Commands on the phone run on this machine, as you, in a folder of their own: it is no jail.

    \b
    Examples:
      hexgraft device loopback -- hexgraft devices
      hexgraft device loopback --drop 30 -- hexgraft push smollm2
      hexgraft device loopback -- bash
    """
    if not Path(shell).is_file():
        raise UsageError(f"--shell {shell} is not there", "use /bin/sh, or install mksh")
    signal.signal(signal.SIGTERM, _interrupt)
    faults = Faults(rate=rate * 1e6 if rate else None, refuse=refuse, no_shell_v2=old)
    faults.drops.extend(round(megabytes * 1e6) for megabytes in drop)
    with LoopbackDevice(
        PHONES[phone], folder=folder, port=port, faults=faults, shell=shell, toybox=toybox
    ) as device:
        device.set_space(space * 1_000_000 if space is not None else None)
        if command:
            return _run(device, command)
        with contextlib.suppress(KeyboardInterrupt):
            click.echo(device.serial)
            say(f"connect to it: adb connect {device.serial}; Ctrl-C ends it")
            threading.Event().wait()
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the phone and what runs on it as Ctrl-C does."""
    raise KeyboardInterrupt


def _run(device: LoopbackDevice, command: tuple[str, ...]) -> int:
    """Run a command with the device as its only phone; its exit code."""
    with AdbServer(find_adb()) as server:
        server.connect([device.serial])
        environment = server.environment | {"ANDROID_SERIAL": device.serial}
        # The key and the caches of the command are the user's own, only the server's home is not.
        for name in ("HOME", "TMPDIR"):
            environment.pop(name, None)
            if name in os.environ:
                environment[name] = os.environ[name]
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        try:
            return _wait(command, environment)
        except OSError as error:
            raise UsageError(
                f"{command[0]} cannot be run: {error.strerror}", "name a program after `--`"
            ) from error


def _wait(command: tuple[str, ...], environment: dict[str, str]) -> int:
    """Run a command to its end; its exit code, 128 and the number of a signal that ended it. Ctrl-C is the
    command's to answer, as in a shell; SIGTERM to us ends it."""
    process: subprocess.Popen[bytes] | None = None
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True
        if process is not None:  # else the command may run already, and nobody would know of it
            raise KeyboardInterrupt

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {signal.SIGTERM: end}
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        # Not SIG_IGN, which the command would inherit: a handler of ours becomes the default there.
        handlers[signal.SIGINT] = _overhear
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        process = subprocess.Popen(command, env=environment)
        if ending:
            raise KeyboardInterrupt
        code = process.wait()
    except KeyboardInterrupt:
        if process is not None:
            _end(process)
        return INTERRUPTED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _overhear(number: int, frame: FrameType | None) -> None:
    """Ctrl-C is for somebody else."""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
