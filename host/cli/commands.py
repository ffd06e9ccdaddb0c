"""The commands by name; each is loaded from the file of its name when it is asked for, so that none waits for
the libraries of another."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import click

SECTIONS = {
    "Bundles": ("demo", "fetch", "models", "export", "import", "inspect", "train-draft"),
    "Text": ("run", "chat", "bake"),
    "Speed": ("tune", "lab", "bench"),
    "Traces": ("tree", "compare", "replay", "pull-trace"),
    "Phones and chips": ("device", "devices", "doctor", "push", "clean", "hub", "genie"),
}
"""The commands as the help shows them, what comes first at the top."""

COMMANDS = tuple(sorted(name for names in SECTIONS.values() for name in names))

_LONGEST, _GAP = max(map(len, COMMANDS)), 2
_SENTENCE = 200
"""Letters of a first sentence at the most."""

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with the first sentence of its help, whole."""
        for title, names in SECTIONS.items():
            found = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title):
                rows = [(name, c.get_short_help_str(_SENTENCE)) for name, c in found.items() if c is not None]
                formatter.write_dl(rows, col_spacing=_GAP + _LONGEST - max(map(len, names)))


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
