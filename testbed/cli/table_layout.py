"""Tables that fit the screen: columns that have no room in one table go into another below it, nothing is cut."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Cell = str | Text

_WIDEST_KEY = 0.4
"""Of the width: a longer name of a row goes on in the next line ..."""

_NARROWEST_KEY = 20
"""... and in as many as it takes, down to these columns of the screen, where that keeps a section in one table."""

_WIDEST_WRAPPED = 24
"""Columns of the screen that a list in a cell takes before it is wrapped."""


@dataclass(frozen=True)
class Column:
    """One column: its heading (which may have line ends) and a cell per row."""

    heading: str
    cells: Sequence[Cell]
    left: bool = False
    wrapped: bool = False
    """Whether cells are lists of words, which may be wrapped."""
    unit: str | None = None
    """Of cells that are numbers, where only the table's title says it, or a heading at its end."""

    @property
    def width(self) -> int:
        """Of the widest cell, with what the table puts around it."""
        texts = [*self.heading.split("\n"), *(str(cell) for cell in self.cells)]
        widest = max(map(cell_len, texts))
        return (min(widest, _WIDEST_WRAPPED) if self.wrapped else widest) + 3


@dataclass(frozen=True)
class Section:
    """Columns that belong together, and the title that they have in a table of their own."""

    title: str
    columns: Sequence[Column]


class UnitTable(Table):
    """A table that knows what its cells are numbers of, column by column, where they do not say it themselves.

    Its title has the width of the screen, not that of its columns, which may be few.
    """

    units: Sequence[str | None] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich.table.Table."""
        yield Text(str(self.title), "table.title")
        untitled = copy(self)
        untitled.title = None
        yield from Table.__rich_console__(untitled, console, options)


def fitted(key: Column, sections: Sequence[Section], width: int) -> list[Table]:
    """One table of all sections where `width` columns of the screen hold it, else one or more for each.

    `key` names the rows and is the first column of every table.
    """
    widest = min(key.width, round(_WIDEST_KEY * width))
    together = [column for section in sections for column in section.columns]
    if widest + _width(together) + 1 <= width:
        return [_table(sections[0].title, key, widest, together, width)]
    tables = []
    for section in sections:
        left = width - 1 - _width(section.columns)
        key_width = min(widest, left) if left >= _NARROWEST_KEY else widest
        for number, columns in enumerate(_parts(section.columns, width - key_width - 1)):
            title = f"{section.title} (more)" if number else section.title
            tables.append(_table(title, key, key_width, columns, width))
    return tables


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns)


def _parts(columns: Sequence[Column], room: int) -> list[list[Column]]:
    """The columns in groups that fit."""
    groups: list[list[Column]] = [[]]
    left = room
    for column in columns:
        if groups[-1] and column.width > left:
            groups.append([])
            left = room
        groups[-1].append(column)
        left -= column.width
    return groups


def _table(title: str, key: Column, key_width: int, columns: Sequence[Column], width: int) -> Table:
    room = width - key_width - 1
    table = UnitTable(title=title, title_justify="left")
    table.units = [key.unit, *(column.unit for column in columns)]
    table.add_column(key.heading, overflow="fold", max_width=key_width - 3)
    for column in columns:
        justify = "left" if column.left else "right"
        whole = not column.wrapped and column.width <= room  # else rich takes the room from the names of the rows
        table.add_column(column.heading, justify=justify, no_wrap=whole, overflow="fold")  # type: ignore[arg-type]
    for row in zip(key.cells, *(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table


def indented(text: Cell, by: int = 4) -> Padding:
    """Words set off from the left, in as many lines as they take."""
    return Padding(text, (0, 0, 0, by))
