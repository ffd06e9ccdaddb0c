"""The commands by name; each is loaded from the file of its name when it is asked for, so that none waits for
the libraries of another."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import click

COMMANDS = (
    "bake",
    "bench",
    "chat",
    "clean",
    "compare",
    "demo",
    "device",
    "devices",
    "doctor",
    "export",
    "fetch",
    "genie",
    "hub",
    "import",
    "inspect",
    "lab",
    "models",
    "pull-trace",
    "push",
    "replay",
    "run",
    "train-draft",
    "tree",
    "tune",
)

_KEYWORDS = {"import": ("import_bundle", "import_command")}
"""Commands whose names Python keeps for itself: their files and attributes."""


class Commands(click.Group):
    """A group whose commands are `hexgraft.host.cli.NAME`, each an attribute NAME of its module, with `_` for
    `-`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        with _ended_by_interrupts():
            file, attribute = _KEYWORDS.get(cmd_name, (name, name))
            command: click.Command = getattr(import_module(f"hexgraft.host.cli.{file}"), attribute)
        return command


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the process at once, as a shell expects: raised in the middle of an import it comes out
    as any error at all, with a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
