"""Tables that leave nothing out, however narrow the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import table
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

WIDE = 1 << 14
"""Columns where nothing limits them: more than any row has."""


class Table(table.Table):
    """rich's table, whose own way with too little room is to end words in an ellipsis: a figure, a serial or
    a setting that is cut tells nothing, and rows that differ behind the cut look alike.

    Here cells wrap between words. Where even the longest words do not fit side by side, the lines around
    them go, and then each row is told in lines of its own, a cell a line.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = Measurement.get(console, options.update_width(WIDE), self)
        if whole.minimum > options.max_width:
            self.box, self.pad_edge = None, False
            whole = Measurement.get(console, options.update_width(WIDE), self)
        if whole.minimum > options.max_width:
            yield from self._lines(console)
            return
        if whole.maximum > options.max_width:
            self._share(console, options, options.max_width - whole.minimum)
        yield from super().__rich_console__(console, options)

    def _share(self, console: Console, options: ConsoleOptions, room: int) -> None:
        """Give each column its longest word, and of the `room` left the same to all that want more."""
        sizes = []
        for column in self.columns:
            cells = (*((column.header,) if self.show_header else ()), *column.cells)
            found = [Measurement.get(console, options.update_width(WIDE), cell) for cell in cells]
            longest = max(size.minimum for size in found)
            sizes.append((max(size.maximum for size in found) - longest, longest, column))
        sizes.sort(key=lambda size: size[0])
        for left, (wanted, longest, column) in zip(range(len(sizes), 0, -1), sizes, strict=True):
            given = min(wanted, room // left)
            column.width = longest + given
            room -= given

    def _lines(self, console: Console) -> Iterator[RenderableType]:
        if self.title:
            yield self._text(console, self.title, "table.title")
        for number, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            cells = [self._text(console, cell) for cell in row]
            if not self.show_header:
                yield Text(": ").join(cell for cell in cells if cell.plain)
                continue
            if number:
                yield ""
            for place, (column, cell) in enumerate(zip(self.columns, cells, strict=True)):
                name = self._text(console, column.header, "table.header")
                line = Text(": ").join((name, cell)) if name.plain else cell
                if cell.plain:
                    yield Padding(line, (0, 0, 0, 2), expand=False) if place else line

    @staticmethod
    def _text(console: Console, cell: RenderableType, style: str = "") -> Text:
        return (
            console.render_str(cell, style=style, highlight=False)
            if isinstance(cell, str)
            else Text(str(cell))
        )
