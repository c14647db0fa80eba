"""Rows of comparisons: a schedule of a plan as it was measured, beside its prediction or the range that this is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from testbed.goodput.elastic_training import ranges_as_played, training_as_played
from testbed.plan.events import at_work
from testbed.planning.left_out import left_out_of
from testbed.planning.prediction import parts_of
from testbed.results.run_files import RunFiles
from testbed.trace.predictions import predicted_times_s

Comparison = Mapping[str, Any]
"""A comparison.json."""


class Prediction(NamedTuple):
    """Seconds of an iteration: one time, and between which it lies by who comes first."""

    low_s: float
    predicted_s: float
    high_s: float
    covered: bool = True
    """Whether the model has everything of this plan."""


class Row(NamedTuple):
    """One schedule of one plan (of one of its jobs)."""

    plan: str
    found: Mapping[str, Any]
    """Its row in comparison.json."""
    prediction: Prediction

    @property
    def label(self) -> str:
        """Of the case, and the job where there are several."""
        job = self.found.get("job")
        return f"{self.found['label']} of {job}" if job else str(self.found["label"])

    @property
    def schedule(self) -> str:
        """Its name."""
        return str(self.found["schedule"])

    @property
    def trusted(self) -> bool:
        """What the run's own verdict was."""
        return bool(self.found["trusted"])

    @property
    def covered(self) -> bool:
        """Whether the model says that it has everything of this plan."""
        return self.prediction.covered

    @property
    def error(self) -> float:
        """Measured over the single prediction, less 1."""
        return float(self.found["measured_s"] / self.prediction.predicted_s - 1)

    @property
    def missed(self) -> float:
        """By what share of the prediction the measured time lies outside of its range."""
        low_s, predicted_s, high_s, _ = self.prediction
        measured_s = float(self.found["measured_s"])
        return max(low_s - measured_s, measured_s - high_s, 0.0) / predicted_s

    @property
    def width(self) -> float:
        """Of the range, as a share of the prediction; 0 for one time."""
        low_s, predicted_s, high_s, _ = self.prediction
        return (high_s - low_s) / predicted_s


def rows_of(plan: str, comparison: Comparison, today: Mapping[tuple[str, str | None], Prediction]) -> list[Row]:
    """Those of a comparison, with today's predictions where there are any, else with those of the run."""
    return [
        Row(plan, row, today.get((row["label"], row.get("job"))) or _of_the_run(row)) for row in comparison["schedules"]
    ]


def predictions(directory: Path) -> dict[tuple[str, str | None], Prediction]:
    """What today's model says of a recorded run's plan, by label and name of the job (None where there is one): of the
    iterations that counted, each with its own prediction where they differ."""
    files, found = RunFiles(directory), {}
    plan = files.plan
    for case in plan.cases:
        parts = parts_of(plan, case, training_as_played(plan, case).trace)
        for number, part, between in zip(at_work(plan, case), parts, ranges_as_played(plan, case), strict=True):
            times_s = predicted_times_s(
                part, [row.iteration for row in files.rows(case.label, number) if not row.warmup]
            )
            seconds = float((np.mean if plan.rounds == "free" else np.median)(times_s))
            low_s, high_s = (between.low_s, between.high_s) if between else (seconds, seconds)
            job = plan.jobs[number].name if len(plan.jobs) > 1 else None
            found[case.label, job] = Prediction(low_s, seconds, high_s, not left_out_of(plan, case, number))
    return found


def _of_the_run(row: Mapping[str, Any]) -> Prediction:
    low_s, seconds, high_s = (row[key] for key in ("predicted_low_s", "predicted_s", "predicted_high_s"))
    covered = bool(row.get("covered", True))
    return Prediction(seconds if low_s is None else low_s, seconds, seconds if high_s is None else high_s, covered)
