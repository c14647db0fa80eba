"""What came of the cells of a study: a row for every cell, schedule and job, as study.parquet has it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from testbed.files import read_json, saving
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.left_out import left_out_of
from testbed.planning.prediction import predicted_rows
from testbed.study import cell_runs
from testbed.study.cells import StudyCell

PREDICTED = "predicted.json"
"""What the model says of a cell that is not to be measured."""

TABLE = "study"
"""The table's files, without their endings."""

_OF_ROWS: Mapping[str, str] = {
    "job": "string",
    "schedule": "string",
    "label": "string",
    "measured_s": "float64",
    "measured_iqr_s": "float64",
    "measured_p95_s": "float64",
    "predicted_s": "float64",
    "predicted_p95_s": "float64",
    "predicted_low_s": "float64",
    "predicted_high_s": "float64",
    "error": "float64",
    "bubble_measured": "float64",
    "bubble_predicted": "float64",
    "peak_in_flight_measured": "float64",
    "peak_in_flight_predicted": "float64",
    "speedup_measured": "float64",
    "speedup_predicted": "float64",
    "published_s": "float64",
    "error_to_published": "float64",
    "trusted": "boolean",
    "covered": "boolean",
    "outcome": "string",
}
"""Columns that a row has from comparison.json, from the model alone, or from a paper; what is not known is empty."""

_OF_CELLS: Mapping[str, str] = {
    "cell": "int64",
    "key": "string",
    "topology": "string",
    "workload": "string",
    "repetition": "int64",
}

RESERVED = frozenset({*_OF_ROWS, *_OF_CELLS, "reasons"})
"""Names that an axis cannot have."""


DOES_NOT_FIT = "does not fit: "
"""What a failure begins with that is none of a run."""


class CellOutcome(NamedTuple):
    """One cell, and what there is of it."""

    cell: StudyCell
    rows: Sequence[Mapping[str, Any]]
    left_out: Mapping[str, str]
    """By label, why a schedule is not among them."""
    failed: str
    """Why it could not be made or measured; "" where it was."""
    order_as_predicted: bool | None
    """Whether schedules were measured in the order of their predictions; None where nothing was measured."""

    @property
    def does_not_fit(self) -> bool:
        """Whether nothing could be made of it: no fault of a run."""
        return self.failed.startswith(DOES_NOT_FIT)

    @property
    def cannot_here(self) -> bool:
        """Whether this machine, or the guest, lacks what it asks for: no fault of a run either."""
        return self.failed.startswith(cell_runs.CANNOT_HERE)

    @property
    def outcome(self) -> str:
        """What came of it, in a word or two; "" where nothing is known of it yet."""
        if self.rows:
            return "predicted" if self.rows[0].get("measured_s") is None else "measured"
        known = {DOES_NOT_FIT: self.does_not_fit, cell_runs.CANNOT_HERE: self.cannot_here, "failed": bool(self.failed)}
        return next((word.rstrip(": ") for word, found in known.items() if found), "")


def predict(plan: Plan, directory: Path) -> None:
    """Keep in a cell's directory what the model says of its plan. Raises BadInput for a job without pacing."""
    rows = [
        {
            "job": row.job if len(plan.jobs) > 1 else None,
            "schedule": row.schedule,
            "label": row.case.label,
            "predicted_s": row.predicted_s,
            "predicted_p95_s": row.predicted_p95_s,
            **row.ends,
            "bubble_predicted": row.bubble_predicted,
            "peak_in_flight_predicted": row.peak_in_flight_predicted,
            "speedup_predicted": row.speedup_predicted,
            "covered": not left_out_of(plan, row.case, row.number),
        }
        for row in predicted_rows(plan)
    ]
    with saving(directory / PREDICTED) as partial:
        partial.write_text(json.dumps({"rows": rows}, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def is_predicted(directory: Path) -> bool:
    """Whether the model has been asked of this cell."""
    return (directory / PREDICTED).is_file()


def not_taken(cell: StudyCell) -> CellOutcome:
    """A cell of which nothing is known yet."""
    return CellOutcome(cell, (), {}, "", None)


def outcome_of(cell: StudyCell, directory: Path, failed: str = "") -> CellOutcome:
    """What lies in a cell's directory. Raises BadInput for a damaged file."""
    left_out: Mapping[str, str] = {}
    if (directory / file.NAME).is_file():
        left_out = read_json(directory / file.NAME, "the plan of a cell").get("left_out", {})
    comparison = cell_runs.outcome(directory)
    if comparison is not None:
        return CellOutcome(cell, comparison["schedules"], left_out, "", comparison["ranking_as_predicted"])
    if is_predicted(directory):
        rows = read_json(directory / PREDICTED, "the predictions of a cell")["rows"]
        return CellOutcome(cell, rows, left_out, failed, None)
    return CellOutcome(cell, (), left_out, failed, None)


def table_of(outcomes: Sequence[CellOutcome]) -> pd.DataFrame:
    """A row for every cell, case and job; of every axis NAME, as the study has it, and NAME_value, in SI units."""
    rows = [
        _of_cell(found.cell)
        | {name: row.get(name) for name in _OF_ROWS}
        | _beside_published(found.cell, row)
        | {"reasons": "; ".join(row.get("reasons", ())), "outcome": found.outcome}
        for found in outcomes
        for row in found.rows
    ]
    return _frame(rows, outcomes, {**_OF_ROWS, "reasons": "string"})


def with_missing(table: pd.DataFrame, outcomes: Sequence[CellOutcome]) -> pd.DataFrame:
    """The table, and in it a row without times for each cell that there is no result of, with the reason."""
    rows = [
        _of_cell(found.cell) | {"reasons": found.failed, "outcome": found.outcome}
        for found in outcomes
        if found.failed and not found.rows
    ]
    missing = _frame(rows, outcomes, {**_OF_ROWS, "reasons": "string"})
    both = pd.concat([table, missing], ignore_index=True).astype(missing.dtypes) if rows else table
    return both.sort_values("cell", kind="stable", ignore_index=True)


def _beside_published(cell: StudyCell, row: Mapping[str, Any]) -> dict[str, float]:
    """What is published of it, and by which share our time is more: the measured one, else the predicted."""
    published_s, ours_s = cell.published.get(row["label"]), row.get("measured_s") or row["predicted_s"]
    if published_s is None:
        return {}
    return {"published_s": published_s, "error_to_published": ours_s / published_s - 1}


def cell_table(outcomes: Sequence[CellOutcome]) -> pd.DataFrame:
    """A row for every cell: what it is of, why there is nothing of it, and whether its order was as predicted."""
    rows = [
        _of_cell(found.cell) | {"failed": found.failed, "order_as_predicted": found.order_as_predicted}
        for found in outcomes
    ]
    return _frame(rows, outcomes, {"failed": "string", "order_as_predicted": "boolean"})


def _of_cell(cell: StudyCell) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "cell": cell.number,
        "key": cell.key,
        "topology": cell.topology,
        "workload": cell.workload,
        "repetition": cell.repetition,
    }
    for name, value in cell.values.items():
        facts |= {name: value.shown, f"{name}_value": value.number}
    return facts


def _frame(
    rows: Sequence[Mapping[str, Any]], outcomes: Sequence[CellOutcome], kinds: Mapping[str, str]
) -> pd.DataFrame:
    """Columns of the cells and their axes first, then those of these kinds."""
    of_axes = [(name, f"{name}_value") for name in (outcomes[0].cell.values if outcomes else ())]
    axes = {column: kind for pair in of_axes for column, kind in zip(pair, ("string", "float64"), strict=True)}
    every = {**_OF_CELLS, **axes, **kinds}
    return pd.DataFrame(rows, columns=list(every)).astype(every)


def write(table: pd.DataFrame, directory: Path) -> None:
    """study.parquet and study.csv. Raises OSError."""
    with saving(directory / f"{TABLE}.parquet") as partial:
        table.to_parquet(partial, index=False)
    with saving(directory / f"{TABLE}.csv") as partial:
        table.to_csv(partial, index=False, float_format="%.12g")
