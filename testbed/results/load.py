"""Reading a results directory, of a finished run or of one that was killed: comparison and traces."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.results.contents import comparison_of, json_of, manifest_of
from testbed.results.destination import COMPARISON, is_complete
from testbed.results.run_tables import Only, has_table, table_of
from testbed.trace.tables import ACTION, FORMAT, KINDS, MESSAGE, MESSAGE_KINDS, READABLE_FORMATS, Table, Trace, rows

if TYPE_CHECKING:
    import pyarrow as pa

TRACE_TABLES = ("actions", "messages")


@dataclass(frozen=True)
class Run:
    """What a results directory says of a run, finished or not."""

    manifest: dict[str, Any]
    """{} where the run ended before it wrote one: while links were measured."""
    comparison: dict[str, Any]
    """comparison.json; of a run that ended before its first schedule was finished, one without schedules."""
    complete: bool
    has_traces: bool

    @property
    def asked(self) -> list[str]:
        """The labels of the cases that were to be measured; [] where the run ended before it wrote that down."""
        return [case["label"] for case in self.manifest.get("schedules", [])]

    @property
    def schedules(self) -> list[str]:
        """The labels of the cases that are finished."""
        return list(dict.fromkeys(row["label"] for row in self.comparison["schedules"]))


def load_run(directory: Path) -> Run:
    """Raises BadInput for a directory that holds nothing of a run, or files that cannot be read."""
    manifest, comparison = manifest_of(directory), comparison_of(directory / COMPARISON)
    if manifest is None and json_of(directory / "links.json") is None:
        raise BadInput.of(str(directory), "directory", "no manifest.json", "the results of a run")
    nothing: dict[str, Any] = {"complete": False, "schedules": []}
    return Run(manifest or {}, comparison or nothing, is_complete(directory), has_traces(directory))


def has_traces(directory: Path) -> bool:
    """Whether actions and messages of a case or more are there."""
    return all(has_table(directory / f"{name}.parquet") for name in TRACE_TABLES)


def load_traces(
    directory: Path, labels: Collection[str] = (), iterations: Collection[int] | None = None
) -> dict[tuple[str, str], Trace]:
    """(label of a case, "predicted" or "measured") -> trace of all jobs, in the order of the run.

    With `labels` of these cases alone; with `iterations` of the measured ones these alone: what is not asked for is not
    held in memory.
    Raises BadInput for a directory without a manifest and for results of another format version.
    """
    manifest = manifest_of(directory)
    if manifest is None:
        raise BadInput.of(str(directory), "manifest.json", "no such file", "the results of a run")
    require_readable(manifest, directory)
    of_cases: list[tuple[str, str, Any]] = [("schedule", "in", list(labels))] if labels else []
    only: Only = [of_cases] if labels else ()
    if iterations is not None:
        only = [[*of_cases, ("source", "==", "predicted")], [*of_cases, ("iteration", "in", list(iterations))]]
    done = _by_run(directory / "actions.parquet", [str(kind) for kind in KINDS], ACTION, only)
    sent = _by_run(directory / "messages.parquet", list(MESSAGE_KINDS), MESSAGE, only)
    n_ranks = len(manifest.get("nodes", ()))
    return {key: Trace(table, sent.get(key, rows(MESSAGE, 0)), n_ranks) for key, table in done.items()}


def require_readable(manifest: dict[str, Any], directory: Path) -> None:
    """Raises BadInput for the manifest of a run whose tables are of another format version."""
    if manifest.get("format", 1) not in READABLE_FORMATS:
        earlier = ", ".join(map(str, READABLE_FORMATS[:-1]))
        expected = f"format {FORMAT}, that of this version, or an earlier one ({earlier})"
        raise BadInput.of(str(directory / "manifest.json"), "format", manifest.get("format", 1), expected)


def _by_run(path: Path, kinds: list[str], dtype: Any, only: Only) -> dict[tuple[str, str], Table]:
    """By case and source, in the order of the file."""
    table = table_of(path, ["schedule", "source", *dtype.names], only, coded=["schedule", "source", "kind"])
    try:
        (labels, of_label), (sources, of_source) = _coded(table["schedule"]), _coded(table["source"])
        whole, of_run = _array(table, kinds, dtype), of_label * len(sources) + of_source
        codes, first = np.unique(of_run, return_index=True)
        return {
            (str(labels[code // len(sources)]), str(sources[code % len(sources)])): whole[of_run == code]
            for code in codes[np.argsort(first)]
        }
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput.of(str(path), "columns", str(error), "values as a run writes them") from error


def _array(table: pa.Table, kinds: list[str], dtype: Any) -> Table:
    """The columns as an array, kinds as codes."""
    found = rows(dtype, len(table))
    for name in dtype.names:
        if name == "kind":
            there, codes = _coded(table[name])
            found[name] = np.array([kinds.index(kind) for kind in there], int)[codes]
        else:
            try:
                with np.errstate(invalid="raise"):  # or nothing would become some whole number
                    found[name] = table[name].to_numpy()
            except (FloatingPointError, TypeError) as error:
                raise ValueError(f"{name} that is no number") from error
    return found


def _coded(column: pa.ChunkedArray) -> tuple[list[Any], NDArray[np.int64]]:
    """What stands in a column, and of every row, which of it. Raises ValueError where a row has nothing."""
    import pyarrow as pa

    if column.null_count:
        raise ValueError("a row without a value")
    coded = column.combine_chunks()
    coded = coded if isinstance(coded, pa.DictionaryArray) else coded.dictionary_encode()
    there = coded.dictionary.to_pylist()
    return there, coded.indices.to_numpy().astype(np.int64)
