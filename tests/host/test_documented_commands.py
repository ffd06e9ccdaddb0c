"""Every command line in a block of the documentation is one that the program takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hexgraft.host.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BETWEEN = re.compile(r"&&|\|\s|;|\s--\s(?=hexgraft |make|bash)")


def command_lines(page: Path) -> Iterator[str]:
    """What follows `hexgraft` in the page's blocks, a command a line."""
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            shown = line.split(" #")[0].replace('"$(hexgraft fetch)"', "FETCHED")
            for part in _BETWEEN.split(shown):
                words = part.strip().removeprefix("$ ").split(" > ")[0]
                if words.startswith("hexgraft "):
                    yield words.removeprefix("hexgraft ")


def parse(line: str) -> None:
    """Read a command line as the program does, without running it."""
    words, command = shlex.split(line), cli
    context = click.Context(command, info_name="hexgraft")
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, context, name)  # type: ignore[assignment]
    command.make_context(context.info_name, list(words), parent=context.parent)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if [*command_lines(page)]], ids=lambda page: page.name
)
def test_commands_that_pages_show(page: Path) -> None:
    for line in command_lines(page):
        try:
            parse(line)
        except click.BadParameter as error:
            if not error.message.endswith("does not exist."):  # files are the reader's own
                pytest.fail(f"{page.name}: hexgraft {line}: {error.format_message()}")
        except click.ClickException as error:
            pytest.fail(f"{page.name}: hexgraft {line}: {error.format_message()}")


def test_the_readme_has_many() -> None:
    assert len([*command_lines(ROOT / "README.md")]) > 25
    with pytest.raises(click.UsageError):
        parse("run smollm2 --no-such-option")
