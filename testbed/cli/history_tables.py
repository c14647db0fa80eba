"""What `testbed baseline history` shows: a row for every schedule of every baseline, and what was not "same"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from testbed.baseline.check_report import show_value
from testbed.baseline.history import CheckRecord, Series, sparkline
from testbed.baseline.regression import CheckVerdict
from testbed.baseline.tolerance import FigureKind, Mode
from testbed.cli.table_layout import Column, Section, fitted
from testbed.units import show_change

_MOST_BARS = 12
"""Of a sparkline, so that the table fits 80 columns."""

_MOST_REMARKS = 10


def history_document(records: Sequence[CheckRecord], series: Sequence[Series]) -> dict[str, Any]:
    """For --json: the checks, and per series its points with the number of their check; times in seconds."""
    facts = ("time", "commit", "modified", "version", "source", "within_tolerance")
    checks = [
        {name: getattr(record, name) for name in facts} | {"machine": asdict(record.machine)} for record in records
    ]
    numbers = {id(record): number for number, record in enumerate(records)}
    listed = []
    for one in series:
        first = one.points[0].record
        points = [
            {"check": numbers[id(point.check)], "time_s": point.record.time_s, "verdict": point.record.verdict}
            for point in one.points
        ]
        names = {"baseline": first.baseline, "mode": one.mode, "schedule": first.schedule, "job": first.job}
        listed.append(names | {"points": points})
    return {"checks": checks, "series": listed}


def history_tables(records: Sequence[CheckRecord], series: Sequence[Series], width: int) -> list[RenderableType]:
    """A table for each way of checking; below it the last verdicts that were not "same"."""
    shown: list[RenderableType] = []
    days = dict.fromkeys((records[0].time[:10], records[-1].time[:10]))
    span = f"{len(records)} check{'s' * (len(records) > 1)}, {' to '.join(days)}"
    for mode, how in ((Mode.virtual, "virtual clock"), (Mode.real, "real clock"), (Mode.predict, "predictions")):
        mine = [one for one in series if one.mode is mode]
        if mine:
            key = Column("baseline: schedule", [one.name for one in mine], left=True)
            shown += fitted(key, [Section(f"{how} ({span})", _columns(mine))], width)
    lines = _not_same(series)
    machines = len({record.machine for record in records})
    if machines > 1:
        lines.append(f"made on {machines} machines: times of a real clock differ by that alone")
    return [*shown, *map(Text, lines)]


def _columns(series: Sequence[Series]) -> list[Column]:
    changes = []
    for one in series:
        known = [seconds for seconds in one.times_s if seconds is not None]
        changes.append(show_change(known[-1] / known[0] - 1, 3) if len(known) > 1 else "-")
    return [
        Column("last", [show_value(FigureKind.measured, one.times_s[-1]) for one in series]),
        Column("since first", changes),
        Column("times", [sparkline(one.times_s[-_MOST_BARS:]) for one in series], left=True),
        Column("verdict", [str(one.points[-1].record.verdict) for one in series], left=True),
    ]


def _not_same(series: Sequence[Series]) -> list[str]:
    """A line for each of the last verdicts that were another one than "same"."""
    found = [point for one in series for point in one.points if point.record.verdict is not CheckVerdict.same]
    found.sort(key=lambda point: point.check.time)
    earlier = len(found) - _MOST_REMARKS
    return [
        *([f'{earlier} earlier verdicts that were not "same"'] if earlier > 0 else []),
        *(
            f"{point.check.time[:10]} {point.check.commit_name} {point.record.name}: {point.record.verdict}"
            for point in found[-_MOST_REMARKS:]
        ),
    ]
