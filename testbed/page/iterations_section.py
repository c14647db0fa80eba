"""How long every iteration of a run took, for the page's chart."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from testbed.judge.comparison import job_of
from testbed.page.markup import Markup, tag
from testbed.page.subject import Subject, row_name
from testbed.results.run_tables import frame_of
from testbed.units import finite


def series_of(subject: Subject) -> list[dict[str, Any]]:
    """Per entry of the comparison its iterations in seconds, warm-up included, and what was predicted.

    Raises BadInput for a table that cannot be read.
    """
    if subject.lacks("iterations.parquet"):
        return []
    table = frame_of(subject.directory / "iterations.parquet", ["schedule", "iteration", "warmup", "makespan_s"])
    found = []
    for row in subject.rows:
        mine = _of(table, row.label, subject.jobs.index(job_of(row)) if subject.jobs else 0)
        found.append(
            {
                "name": f"{subject.name} {row_name(row)}".strip(),
                "iterations": [int(number) for number in mine["iteration"]],
                "seconds": [finite(float(seconds)) for seconds in mine["makespan_s"]],
                "warmup": [bool(warmup) for warmup in mine["warmup"]],
                "predicted_s": row.predicted_s,
            }
        )
    return [one for one in found if one["iterations"]]


def happened(subject: Subject) -> dict[int, list[str]]:
    """By number of an iteration, what happened to links in it. Raises BadInput for a table that cannot be read."""
    if subject.lacks("link_events.parquet"):
        return {}
    table = frame_of(subject.directory / "link_events.parquet", ["iteration", "event"])
    found: dict[int, list[str]] = {}
    for number, event in sorted(
        {(int(number), str(event)) for number, event in zip(table["iteration"], table["event"], strict=True)}
    ):
        found.setdefault(number, []).append(event)
    return found


def events_list(subject: Subject) -> Markup:
    """The same in words, for below the chart; empty where nothing happened. Events say when they come by measured
    iterations, the chart counts warm-up: both numbers are given."""
    found, warmup = happened(subject), _warmup(subject)

    def called(number: int) -> str:
        which = "warm-up" if number in warmup else f"measured {number - len(warmup)}"
        return f"iteration {number} ({which})" if warmup else f"iteration {number}"

    said = [tag("li", f"{called(number)}: {'; '.join(events)}") for number, events in found.items()]
    return tag("ul", *said, class_="small") if said else Markup("")


def _warmup(subject: Subject) -> set[int]:
    """The iterations that count for no case."""
    if subject.lacks("iterations.parquet"):
        return set()
    table = frame_of(subject.directory / "iterations.parquet", ["iteration", "warmup"])
    never = table["warmup"].astype(bool).groupby(table["iteration"]).all()
    return {int(number) for number in never.index[never]}


def seconds_of_case(subject: Subject, label: str) -> float:
    """How long all iterations of a case took together, warm-up included; nan where that is not known."""
    if subject.lacks("iterations.parquet"):
        return math.nan
    table = frame_of(subject.directory / "iterations.parquet", ["schedule", "iteration", "makespan_s"])
    mine = table[table["schedule"] == label]
    return float(mine.groupby("iteration")["makespan_s"].max().sum()) if len(mine) else math.nan


def _of(table: pd.DataFrame, label: str, job: int) -> pd.DataFrame:
    mine = table[table["schedule"] == label]
    return mine[mine["job"] == job] if "job" in mine else mine  # runs of earlier versions had one job
