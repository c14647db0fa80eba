"""What `run` and `report` print of events between iterations: what they changed, and what that was worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from testbed.cli.table_layout import Column, Section, fitted
from testbed.units import show_time, show_times


def event_tables(events: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """A row per event: what moved and what the controller took; then one per job: iterations around the event."""
    if not events:
        return []
    key = Column("event", [one["label"] for one in events], left=True)
    columns = [
        Column("after", [str(one["after"]) for one in events]),
        Column("flows", [str(one["flows"]) for one in events]),
        Column("new", [str(one["flows_new"]) for one in events]),
        Column("moved", [str(one["flows_moved"]) for one in events]),
        Column("had to", [str(one["flows_cut"]) for one in events]),
        Column("controller", [show_time(one["choosing_s"] + one["enforcing_s"]) for one in events]),
    ]
    tables = fitted(key, [Section("events between iterations", columns)], width)
    return tables + _iterations(events, width)


def _iterations(events: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """Measured, and predicted in brackets, before and after; the first iteration after the event is `during`."""
    rows = [(one["label"], job) for one in events for job in one["iterations"]]
    names = ("before_s", "during_s", "after_s", "before_predicted_s", "after_predicted_s")
    shown = iter(show_times([job[name] for _, job in rows for name in names]))
    cells = [[next(shown) for _ in names] for _ in rows]
    pairs = [
        Column("before m/p", [f"{before} / {predicted}" for before, _, _, predicted, _ in cells]),
        Column("during", [during for _, during, *_ in cells]),
        Column("after m/p", [f"{after} / {predicted}" for _, _, after, _, predicted in cells]),
    ]
    key = Column("event: job", [f"{label}: {job['job']}" for label, job in rows], left=True)
    return fitted(key, [Section("iterations before, during and after", pairs)], width)
