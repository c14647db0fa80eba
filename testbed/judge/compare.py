"""Measured against predicted, per schedule: the content of comparison.json and of the table on screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from testbed.judge.fidelity import Check
from testbed.judge.iterations import IterationRow, median_and_iqr
from testbed.judge.messages import FlowMessages
from testbed.model.host import HostPrediction
from testbed.thresholds import TIE
from testbed.trace.summary import Summary

BASELINE = "1f1b"
"""The schedule that speed-ups are over."""


@dataclass(frozen=True)
class ScheduleComparison:
    """One schedule, measured and predicted. Speed-ups are over 1F1B in the same run, None where it did not run."""

    schedule: str
    """The family, or the file it came from."""
    label: str
    """What the run calls it: the tables' key."""
    measured_s: float
    """Median iteration time."""
    measured_iqr_s: float
    predicted_s: float
    error: float
    """(measured - predicted) / predicted"""
    bubble_measured: float
    """Idle share of all ranks' time (median over iterations)."""
    bubble_predicted: float
    peak_in_flight_measured: float
    """Most microbatches held at once on any rank."""
    peak_in_flight_predicted: float
    speedup_measured: float | None
    speedup_predicted: float | None
    trusted: bool
    reasons: list[str]
    solver: dict[str, Any] | None = None
    """What a solver proved of the schedule (schedule/proof.py); None where none made it."""
    predicted_on_this_host_s: float | None = None
    """With what this machine adds to every message, as measured before the run; None on the virtual clock and without
    pacing, as the next two: nineteen iterations of twenty lie between them."""
    on_this_host_low_s: float | None = None
    on_this_host_high_s: float | None = None
    disturbed_iterations: int | None = None
    """Of the measured ones, those that the machine disturbed by its own accounts; None on the virtual clock."""
    measured_undisturbed_s: float | None = None
    """Median over the others; None where there are none."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    """What was asked for the verdict, found, and allowed (judge/fidelity.py)."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Measured against predicted arrivals, flow by flow (judge/messages.py)."""

    @property
    def error_on_this_host(self) -> float | None:
        """(measured - predicted on this host) / predicted on this host"""
        expected = self.predicted_on_this_host_s
        return None if expected is None else (self.measured_s - expected) / expected


@dataclass(frozen=True)
class Measured:
    """What was measured of one schedule, and what had been predicted."""

    schedule: str
    label: str
    rows: Sequence[IterationRow]
    """Measured iterations only."""
    predicted: Summary
    checks: Sequence[Check]
    solver: dict[str, Any] | None = None
    on_this_host: HostPrediction | None = None
    disturbed: Sequence[bool] | None = None
    """Per row."""
    messages: Sequence[FlowMessages] = ()

    @property
    def reasons(self) -> list[str]:
        """Why it cannot be trusted; [] when it can."""
        return [reason for check in self.checks for reason in check.reasons]

    @property
    def undisturbed_s(self) -> float | None:
        """Median over the iterations that nothing disturbed."""
        if self.disturbed is None or all(self.disturbed):
            return None
        calm = [row.makespan_s for row, far in zip(self.rows, self.disturbed, strict=True) if not far]
        return median_and_iqr(np.array(calm))[0]

    @property
    def median_s(self) -> float:
        """Median iteration time."""
        return median_and_iqr(np.array([row.makespan_s for row in self.rows]))[0]


def compare(runs: Sequence[Measured]) -> list[ScheduleComparison]:
    """One comparison per run, in the same order."""
    baseline = next((run for run in runs if run.schedule == BASELINE), None)
    result = []
    for run in runs:
        measured_s, iqr_s = median_and_iqr(np.array([row.makespan_s for row in run.rows]))
        predicted_s = run.predicted.makespan_s
        result.append(
            ScheduleComparison(
                schedule=run.schedule,
                label=run.label,
                measured_s=measured_s,
                measured_iqr_s=iqr_s,
                predicted_s=predicted_s,
                error=(measured_s - predicted_s) / predicted_s,
                bubble_measured=float(np.median([row.bubble_ratio for row in run.rows])),
                bubble_predicted=run.predicted.bubble_ratio,
                peak_in_flight_measured=max(max(row.peak_in_flight) for row in run.rows),
                peak_in_flight_predicted=max(run.predicted.peaks),
                speedup_measured=baseline.median_s / measured_s if baseline else None,
                speedup_predicted=baseline.predicted.makespan_s / predicted_s if baseline else None,
                trusted=not run.reasons,
                reasons=run.reasons,
                solver=run.solver,
                **_on_this_host(run),
                checks=[check._asdict() | {"ok": check.ok} for check in run.checks],
                messages=[flow._asdict() for flow in run.messages],
            )
        )
    return result


def _on_this_host(run: Measured) -> dict[str, Any]:
    host = run.on_this_host
    return {
        "predicted_on_this_host_s": host and host.median_s,
        "on_this_host_low_s": host and host.low_s,
        "on_this_host_high_s": host and host.high_s,
        "disturbed_iterations": None if run.disturbed is None else sum(map(bool, run.disturbed)),
        "measured_undisturbed_s": run.undisturbed_s,
    }


def same_ranking(schedules: Sequence[ScheduleComparison], tie: float = TIE) -> bool:
    """Whether measuring puts the schedules in the order that was predicted; of those within a tie, either is right."""
    by_measured = sorted(schedules, key=lambda s: s.measured_s)
    pairs = combinations(by_measured, 2)
    return all(faster.predicted_s <= slower.predicted_s * (1 + tie) for faster, slower in pairs)


def as_document(identity: dict[str, Any], schedules: Sequence[ScheduleComparison]) -> dict[str, Any]:
    """comparison.json: the run's identity, and the list `schedules`."""
    return {**identity, "schedules": [asdict(schedule) for schedule in schedules]}
