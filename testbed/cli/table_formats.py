"""Tables as Markdown, LaTeX or CSV on stdout (`--format`), for papers and other programs; every other line on stderr.

The commands print as ever, on a console of `stdout_console`: with a format that is one which knows what to do with
tables. Nothing is split there, however wide. Tables without headings (of what was asked) count as other lines.
"""

from __future__ import annotations

import csv
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.table import Table

from testbed.cli.table_layout import UnitTable
from testbed.errors import BadInput
from testbed.units import COMPUTE, LENGTH, RATE, SIZE, TIME


class TableFormat(StrEnum):
    """What tables can be printed as, beside the terminal's form."""

    md = "md"
    latex = "latex"
    csv = "csv"


_Option = Annotated[
    TableFormat | None,
    typer.Option(
        "--format",
        help="Print tables on stdout as Markdown, as LaTeX (booktabs) or as CSV (SI units); what else is said goes to "
        "stderr.",
    ),
]


_NAME = "table_format"
"""Of the option, as a parameter."""


def with_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with an option --format, in which its tables are printed. Raises BadInput beside --json.

    One that has it stays as it is: help is made for groups of commands as often as they are asked for.
    """
    own = inspect.signature(command, eval_str=True)
    if _NAME in own.parameters:
        return command

    @wraps(command)
    def with_option(*, table_format: TableFormat | None = None, **given: Any) -> Any:
        if table_format is not None and given.get("as_json"):
            expected = "no --json beside it: that prints results, this their tables"
            raise BadInput.of("--format", "option", table_format.value, expected)
        with printing_as(table_format):
            return command(**given)

    option = inspect.Parameter(_NAME, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Option)
    with_option.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    return with_option


@dataclass
class _Output:
    """Where a command's tables go."""

    form: TableFormat
    tables: int = 0
    """That were printed so far."""


_OUTPUT: ContextVar[_Output | None] = ContextVar("table output", default=None)


@contextmanager
def printing_as(form: TableFormat | None) -> Iterator[None]:
    """Meanwhile tables are printed in this form; None is the terminal's."""
    token = _OUTPUT.set(None if form is None else _Output(form))
    try:
        yield
    finally:
        _OUTPUT.reset(token)


def console_for_tables() -> Console | None:
    """A console that prints tables in the form that was asked for; None where none was."""
    output = _OUTPUT.get()
    return None if output is None else _TableConsole(output)


_WIDE = 100_000
"""Columns of a screen on which any table has room."""


class _TableConsole(Console):
    """Tables with headings to stdout in a form; what else is printed to stderr as ever."""

    def __init__(self, output: _Output) -> None:
        super().__init__(width=_WIDE)
        self._output = output
        self._other = Console(stderr=True)

    def print(self, *objects: Any, **how: Any) -> None:
        """Of groups every part for itself."""
        for one in objects:
            if isinstance(one, Group):
                self.print(*one.renderables, **how)
            elif isinstance(one, Table) and one.show_header:
                if self._output.tables:
                    sys.stdout.write("\n")
                sys.stdout.write(written(one, self._output.form))
                self._output.tables += 1
            else:
                self._other.print(one, **how)


@dataclass(frozen=True)
class _Columns:
    """What a table says: a heading, a list of cells and a side for every column."""

    title: str
    headings: list[str]
    cells: list[list[str]]
    left: list[bool]
    units: list[str | None]


def written(table: Table, form: TableFormat) -> str:
    """A table in one of the forms; lines end in line feeds."""
    found = _columns_of(table)
    match form:
        case TableFormat.md:
            return _markdown(found)
        case TableFormat.latex:
            return _latex(found)
        case TableFormat.csv:
            return _csv(found)


def _columns_of(table: Table) -> _Columns:
    headings = [str(column.header) for column in table.columns]
    cells = [[" ".join(str(cell).split()) for cell in column.cells] for column in table.columns]
    left = [column.justify in ("left", "default") for column in table.columns]
    units = table.units if isinstance(table, UnitTable) else [None] * len(headings)
    return _Columns(str(table.title or ""), _in_one_line(headings), cells, left, list(units))


def _in_one_line(headings: Sequence[str]) -> list[str]:
    """Headings without line ends; one that stands several times with its group's, or the one before it, in front."""
    short = [" ".join(heading.replace("-\n", "").split()) for heading in headings]
    found, group, before = [], "", ""
    for heading, words in zip(headings, short, strict=True):
        first, separator, _ = heading.partition("\n")
        group = first.rstrip(":") if separator and first else group
        if short.count(words) == 1:
            found.append(words)
            before = words
        else:
            found.append(f"{group if separator and not first and group else before} {words}".strip())
    return found


# --- Markdown and LaTeX --------------------------------------------------------------------------


def _markdown(table: _Columns) -> str:
    """A pipe table with its title above it."""
    lines = [f"**{_for_markdown(table.title)}**", ""] if table.title else []
    rule = [":---" if left else "---:" for left in table.left]
    rows = [map(_for_markdown, row) for row in (table.headings, *zip(*table.cells, strict=True))]
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([*lines, head, f"| {' | '.join(rule)} |", *body, ""])


def _for_markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", text)


def _latex(table: _Columns) -> str:
    """A tabular in the manner of booktabs, to be put into a table; its title as a comment."""
    sides = "".join("l" if left else "r" for left in table.left)
    head, *body = (
        f"{' & '.join(map(_for_latex, row))} \\\\" for row in (table.headings, *zip(*table.cells, strict=True))
    )
    return "\n".join(
        [
            f"% {table.title or 'table'}; needs \\usepackage{{booktabs}}",
            f"\\begin{{tabular}}{{{sides}}}",
            "\\toprule",
            head,
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "",
        ]
    )


_LATEX = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "[": "{[}",  # behind \\ it would begin an argument
    "]": "{]}",
    "*": "{*}",  # likewise
    "±": "$\\pm$",
    "×": "$\\times$",
    "µ": "$\\mu$",
    "→": "$\\rightarrow$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _for_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


# --- CSV -----------------------------------------------------------------------------------------

_FACTORS: dict[str | None, tuple[str, Decimal]] = {
    None: ("", Decimal(1)),
    "x": ("", Decimal(1)),
    "%": ("1", Decimal("0.01")),
    **{
        name: (next(base for base, one in units.items() if one == 1), Decimal(repr(factor)))
        for units in (TIME, RATE, SIZE, LENGTH, COMPUTE)
        for name, factor in units.items()
    },
}
"""By what stands behind a number: the SI unit, and how many of it."""

_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?"
_CELL = re.compile(rf"(?P<low>{_NUMBER})(?: to (?P<high>{_NUMBER}))? ?(?P<unit>[%A-Za-zµ/]+)?")
_NOTHING = ("", "-")
NEVER = "never ends"
"""A cell among times; in CSV the number inf."""
_BOTH = "m/p"
"""In a heading: cells are "measured / predicted"."""
_ALL_BOTH = "measured / predicted"
"""In a title: such cells are in all columns that have any."""


def _csv(table: _Columns) -> str:
    """A heading and a line for every row; columns that are numbers throughout as numbers, with the unit above them.

    A range becomes two columns, and so does "measured / predicted". What is left out of a first column, since it is as
    above, is filled in.
    """
    columns: list[tuple[str, list[str]]] = []
    for number, (heading, cells) in enumerate(zip(table.headings, table.cells, strict=True)):
        shown = _filled(cells) if number == 0 else cells
        for name, part in _parts(heading, shown, both=_BOTH in heading or _ALL_BOTH in table.title):
            columns += _numbers(name, part, table.units[number]) or [(name, part)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(heading for heading, _ in columns)
    writer.writerows(zip(*(cells for _, cells in columns), strict=True))
    return stream.getvalue()


def _filled(cells: Sequence[str]) -> list[str]:
    filled: list[str] = []
    for cell in cells:
        filled.append(cell or (filled[-1] if filled else ""))
    return filled


def _parts(heading: str, cells: list[str], *, both: bool) -> list[tuple[str, list[str]]]:
    """The column, or what was measured and what was predicted, which a cell shows beside each other."""
    pairs = [cell.split(" / ") for cell in cells]
    if not both or any(len(pair) != 2 for pair in pairs):
        return [(heading, cells)]
    joined = heading if _BOTH in heading else f"{heading} {_BOTH}"
    words = (joined.replace(_BOTH, word) for word in ("measured", "predicted"))
    return [(word, [pair[place] for pair in pairs]) for place, word in enumerate(words)]


def _numbers(heading: str, cells: Sequence[str], unit: str | None) -> list[tuple[str, list[str]]] | None:
    """The column, or two of them, in its SI unit; None where a cell is no number, or units are of several kinds.

    `unit` is that of cells which name none.
    """
    words = {**dict.fromkeys(_NOTHING, ""), NEVER: "inf"}
    matches = [None if cell in words else _CELL.fullmatch(cell) for cell in cells]
    found = [match for match in matches if match is not None]
    if len(found) < sum(cell not in words for cell in cells):
        return None
    if not found:
        return [(f"{heading} [s]" if NEVER in cells else heading, [words[cell] for cell in cells])]
    units = {match["unit"] or unit for match in found}
    if not units <= _FACTORS.keys() or len({_FACTORS[name][0] for name in units}) > 1:
        return None
    base = _FACTORS[next(iter(units))][0]

    def column(name: str, part: str) -> tuple[str, list[str]]:
        values = [
            words[cell] if one is None else _si(one[part] or one["low"], one["unit"] or unit)
            for cell, one in zip(cells, matches, strict=True)
        ]
        bare = name.removesuffix(f" {unit}").removesuffix(",")
        return f"{bare} [{base}]" if base else name, values

    if not any(match["high"] for match in found):
        return [column(heading, "low")]
    return [column(f"{heading} low", "low"), column(f"{heading} high", "high")]


def _si(number: str, unit: str | None) -> str:
    """All digits that are shown."""
    value = Decimal(number) * _FACTORS[unit][1]
    return f"{value.normalize():f}" if value else "0"
