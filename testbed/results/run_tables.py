"""Reading the tables of a run: parquet files, or the parts that a run which goes on has written of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from functools import cache
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from testbed.attributes import replaced
from testbed.errors import BadInput
from testbed.files import note_input
from testbed.results.destination import PARTS

if TYPE_CHECKING:
    import pandas as pd  # slow to import, as is pyarrow: a run that was interrupted is shown without them
    import pyarrow as pa

Only = Sequence[list[tuple[str, str, Any]]]
"""Rows of a table: those of which any of these holds, all of its (column, operator, value); () for all rows."""

_FEW_ROWS = 50_000
"""Of a table: all are read, and those that are wanted chosen here, sooner than pyarrow.dataset is imported."""


def has_table(path: Path) -> bool:
    """Whether a table is there: its file, or parts of it that a run wrote before it ended."""
    return bool(_files_of(path))


def _files_of(path: Path) -> list[Path]:
    """The files of a table: its own, else its parts, in the order in which they were written."""
    return [path] if path.is_file() else sorted((path.parent / PARTS).glob(f"{path.stem}-[0-9]*{path.suffix}"))


@cache
def arrays_without_pandas() -> None:
    """With the first array of a process pyarrow imports pandas, to know a frame where it is given one: half a second in
    every guest, where nobody has any. If it finds none then, it looks again when a frame is asked for.
    """
    import pyarrow as pa

    if "pandas" not in sys.modules:
        with replaced(sys, "meta_path", []):  # where nothing is found
            pa.array(())


def table_of(path: Path, columns: Sequence[str], only: Only = (), coded: Sequence[str] = ()) -> pa.Table:
    """A table of a run with at least these columns, all of its rows or `only` some of them. Raises BadInput.

    Text in the columns that are `coded` may be numbers of what is there once, as it is in files.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays_without_pandas()
    if not (files := _files_of(path)):
        raise BadInput.of(str(path.parent), path.name, "no such file", "the tables of a run")
    tables, file = [], files[0]
    try:
        sizes = [pq.read_metadata(file := one).num_rows for one in files]
        few = sum(sizes) <= _FEW_ROWS
        for file in files:
            tables.append(_few_rows(file, only, coded) if few else _some_of_many(file, only))
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise BadInput.of(str(file), "file", str(error), "a parquet file as a run writes it") from error
    # a part without rows would have a say in the types of columns
    full = [one for one in tables if len(one)] or tables[:1]
    try:
        table = pa.concat_tables(full, promote_options="permissive")
    except (ValueError, TypeError) as error:
        raise BadInput.of(str(path.parent / PARTS), path.stem, str(error), "parts with the same columns") from error
    _require(table, path, columns)
    return table


def _askable(names: Collection[str], only: Only) -> Only:
    """Of a column that is not there nothing can be asked; that is said elsewhere."""
    return only if {column for every in only for column, _, _ in every} <= set(names) else ()


def _some_of_many(file: Path, only: Only) -> pa.Table:
    """Rows of a file, without holding the others in memory."""
    import pyarrow.parquet as pq

    note_input(file.stat())
    opened = pq.ParquetFile(file)
    asked = _askable(opened.schema_arrow.names, only)
    return pq.read_table(file, filters=list(asked)) if asked else opened.read()


def _few_rows(file: Path, only: Only, coded: Sequence[str]) -> pa.Table:
    """The same of a small one, without what pyarrow imports to look for rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    note_input(file.stat())
    table = pq.ParquetFile(file, read_dictionary=list(coded)).read()
    if not (asked := _askable(table.column_names, only)):
        return table
    wanted = np.zeros(len(table), bool)
    for every in asked:
        these = np.ones(len(table), bool)
        for column, operator, value in every:
            these &= np.isin(table[column].to_numpy(), value if operator == "in" else [value])
        wanted |= these
    edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False)).reshape(-1, 2)
    parts = [table.slice(first, end - first) for first, end in edges.tolist()]
    return pa.concat_tables(parts) if parts else table.slice(0, 0)


def frame_of(path: Path, columns: Sequence[str], only: Only = ()) -> pd.DataFrame:
    """What `table_of` gives, as a frame of pandas."""
    frame: pd.DataFrame = table_of(path, columns, only).to_pandas()
    return frame


def _require(table: pa.Table, path: Path, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in table.column_names:
            raise BadInput.of(str(path), name, "nothing", "a column of this name")


def case_of(
    table: pa.Table,
    path: Path,
    label: str,
    numbers: Sequence[str],
    lists: Sequence[str] = (),
    texts: Sequence[str] = (),
    unknown: Collection[str] = (),
) -> dict[str, list[Any]]:
    """By name, these columns of the rows of a case in the table of a file: numbers, lists of numbers as tuples, text.

    A number that a file has not (null) is nan; so are those in `unknown`, in a file of an earlier version that has no
    such column. Raises BadInput naming the file and the column, or the label where nothing is of it.
    """
    _require(table, path, ["schedule", *(name for name in (*numbers, *lists, *texts) if name not in unknown)])
    of_case = [place for place, value in enumerate(table["schedule"].to_pylist()) if value == label]
    if not of_case:
        raise BadInput.of(str(path), "schedule", f"nothing of {label}", "rows of every schedule that the run finished")
    rows = table.take(of_case)
    found: dict[str, list[Any]] = {}
    for name in numbers:
        there = name in table.column_names
        found[name] = _as_numbers(rows[name].to_pylist(), rows[name].type) if there else [math.nan] * len(of_case)
        _require_all(found[name], Number, path, name, "a number in every row")
    for name in lists:
        values, expected = rows[name].to_pylist(), "a list of numbers in every row"
        _require_all(values, list, path, name, expected)
        found[name] = [tuple(_as_numbers(value, rows[name].type.value_type)) for value in values]
        _require_all([number for value in found[name] for number in value], Number, path, name, expected)
    for name in texts:
        found[name] = rows[name].to_pylist()
        _require_all(found[name], str, path, name, "text in every row")
    return found


def _as_numbers(values: list[Any], kind: pa.DataType) -> list[Any]:
    """What a column of numbers has not, is nan."""
    from pyarrow import types

    if not (types.is_integer(kind) or types.is_floating(kind)):
        return values
    return [math.nan if value is None else value for value in values]


def _require_all(values: list[Any], kind: type, path: Path, name: str, expected: str) -> None:
    if wrong := [value for value in values if not isinstance(value, kind)]:
        raise BadInput.of(str(path), name, wrong[0], expected)
