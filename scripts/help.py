"""Writes docs/help.md: the help text of every command, as the terminal shows it. `--check` only compares."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).resolve().parent.parent / "docs" / "help.md"
COMMANDS = "hexgraft.host.cli.main:cli"
WIDTH = 100
INTRO = """\
# Commands

<!-- Written by scripts/help.py from the commands themselves: run `make docs` after changing one. -->

Data goes to standard output, everything else to standard error.
`hexgraft COMMAND --help` prints the same text.
"""


def load(name: str) -> click.Command:
    """The click command at "module:attribute"."""
    module, attribute = name.split(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{name} is a {type(command).__name__}, not a click command")
    return command


def walk(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """(full name, help text) of a command and of every command below it, in alphabetical order."""
    settings = {**command.context_settings, "terminal_width": WIDTH}
    context = click.Context(command, parent, name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from walk(found, child, context)


def page(command: click.Command) -> str:
    """The whole page in Markdown, one section a command."""
    sections = [INTRO]
    for path, text in walk(command, "hexgraft"):
        lines = "\n".join(line.rstrip() for line in text.splitlines())
        sections.append(f"## {path}\n\n```text\n{lines}\n```\n")
    return "\n".join(sections)


def main(arguments: list[str]) -> int:
    text = page(load(COMMANDS))
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"error: {PAGE.name} does not show the commands as they are\nhint: make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
