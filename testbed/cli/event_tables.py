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
    key = Column("event", [event["label"] for event in events], left=True)
    columns = [
        Column("after", [str(event["after"]) for event in events]),
        Column("flows", [str(event["flows"]) for event in events]),
        Column("new", [str(event["flows_new"]) for event in events]),
        Column("moved", [str(event["flows_moved"]) for event in events]),
        Column("had to", [str(event["flows_cut"]) for event in events]),
        Column("controller", [show_time(event["choosing_s"] + event["enforcing_s"]) for event in events]),
    ]
    tables = fitted(key, [Section("events between iterations", columns)], width)
    return tables + _iterations(events, width)


def _iterations(events: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """Measured, and predicted in brackets, before and after; the first iteration after the event is `during`."""
    rows = [(event["label"], job) for event in events for job in event["iterations"]]
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
