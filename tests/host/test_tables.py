"""Tables at every width: no figure, no name and no setting is cut."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import at_terminal, hexgraft
from rich.console import Console
from rich.markup import render

from hexgraft.host.cli.console import stdout
from hexgraft.host.cli.table import Table

CLI = Path(__file__).resolve().parent.parent.parent / "host" / "cli"
SETTINGS = ("lookup+levels, 16 nodes, enough=0.5", "lookup+levels, 16 nodes, enough=0.75")
FIGURES = ("2.15", "3.10", "1234.5", "1.50x (1.42-1.66)")
HEADERS = ("setting", "tokens a round", "draft passes a round", "predicted", "[bold]against[/bold] plain")


def tuned(**look: bool) -> Table:
    """A table as `tune` shows it."""
    table = Table(*HEADERS[:1], title="plain decoding: 72.0 tokens/s measured", title_justify="left", **look)
    for header in HEADERS[1:]:
        table.add_column(header, justify="right")
    for setting in SETTINGS:
        table.add_row(setting, *FIGURES)
    return table


def words() -> Iterator[str]:
    for cell in (*HEADERS, *SETTINGS, *FIGURES):
        yield from render(cell).plain.split()


def printed(table: Table, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.mark.parametrize("width", [20, 30, 40, 60, 64, 72, 80, 100, 120, 400])
@pytest.mark.parametrize("box", [True, False])
def test_every_word_is_whole_at_every_width(width: int, box: bool) -> None:
    table = tuned()
    table.box = table.box if box else None
    shown = printed(table, width)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    found = re.split(r"[\s│┃]+", shown.replace(":", " "))
    assert {*words()} <= {*found}
    assert found.count("(1.42-1.66)") == 2


def test_rows_are_lines_of_their_own_where_they_do_not_fit() -> None:
    shown = printed(tuned(), 40)
    assert "\n\nsetting: lookup+levels, 16 nodes," in shown
    assert "\n  against plain: 1.50x (1.42-1.66)\n" in shown


def test_facts_without_a_header_are_a_line_each_where_they_do_not_fit() -> None:
    facts = Table(title="target", show_header=False)
    facts.add_row("checkpoint", "a" * 30)
    facts.add_row("widths", "1, 8")
    lines = [line.rstrip() for line in printed(facts, 40).splitlines()]
    assert lines == ["target", "checkpoint:", "a" * 30, "widths: 1, 8"]


def test_what_is_no_terminal_has_no_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stdout().print(tuned())
    shown = capsys.readouterr().out
    for setting in SETTINGS:
        assert f"│ {setting}" in shown
    assert shown.count("│ 1.50x (1.42-1.66) │") == 2
    stdout().print("a sentence " * 20)
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("columns", [40, 80])
def test_a_commands_tables(bundle: Path, columns: int) -> None:
    piped = hexgraft("inspect", bundle, "--quick").stdout
    shown, _ = at_terminal("inspect", bundle, "--quick", columns=columns, NO_COLOR="1")
    assert "…" not in shown + piped
    for digest in re.findall(r"\b[0-9a-f]{16}\b", piped):
        assert digest in shown


def test_every_table_is_one_of_these() -> None:
    others = [file.name for file in CLI.glob("*.py") if "from rich.table" in file.read_text(encoding="utf-8")]
    assert others == []
