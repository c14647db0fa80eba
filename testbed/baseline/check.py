"""Repeats baselines and judges what that gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from testbed.baseline import store
from testbed.baseline.check_report import Checked
from testbed.baseline.measure import Measurement, is_paced, measure, require_possible
from testbed.baseline.regression import CheckResult, Figures, judge
from testbed.baseline.settings import with_settings
from testbed.baseline.store import Baseline
from testbed.baseline.tolerance import Mode, Tolerances, default_tolerances
from testbed.errors import BadInput
from testbed.plan.plan import Plan
from testbed.progress import Reporter


class Extent(StrEnum):
    """How much of the baselines is repeated."""

    all = "all"
    quick = "quick"
    """Runs only of those marked as quick; the others are predicted."""
    predictions = "predictions"


def load(
    root: Path,
    names: Sequence[str],
    settings: Sequence[str],
    extent: Extent,
    plan_of: Callable[[Path], Plan] = store.plan_of,
) -> list[tuple[Baseline, Measurement]]:
    """The baselines, and how each is repeated, with the plan that `plan_of` its directory is today. Raises BadInput
    before anything is started.

    Without pacing nothing can be predicted: such a baseline is left out unless its run is repeated.
    """
    subjects = []
    for directory in store.find(root, names):
        baseline = store.read(directory)
        plan = with_settings(plan_of(directory), settings, str(directory))
        run = extent is Extent.all or (extent is Extent.quick and baseline.quick)
        if not run and not is_paced(plan):
            continue
        mode = baseline.mode if run else Mode.predict
        task = Measurement(baseline.name, plan, mode, baseline.shaper, control=baseline.controlled)
        require_possible(task)
        subjects.append((baseline, task))
    if not subjects:
        raise BadInput.of("baseline check", "baselines", list(names), "one that can be predicted (it has no pacing)")
    return subjects


def repeat(
    subjects: Sequence[tuple[Baseline, Measurement]], scratch: Path, *, limit_s: float, reporter: Reporter
) -> tuple[Checked, ...]:
    """Measure again and judge. Raises MachineLacks before anything is started."""
    outcomes = measure([task for _, task in subjects], scratch, limit_s=limit_s, reporter=reporter)
    checked = []
    for baseline, task in subjects:
        bands, outcome = _bands(baseline, task), outcomes[task.name]
        before, now = on_one_text(baseline, _comparable(baseline, task), outcome)
        findings = tuple(judge(task.name, before, now, bands))
        checked.append(Checked(baseline, task.mode, bands, outcome, findings))
    return tuple(checked)


def _bands(baseline: Baseline, task: Measurement) -> Tolerances:
    """Those the baseline was saved with; of a run that is only predicted now, those of a prediction."""
    return baseline.tolerances if task.mode is baseline.mode else _of_prediction(baseline, task.mode)


def _of_prediction(baseline: Baseline, mode: Mode) -> Tolerances:
    return default_tolerances(mode, paced=True, recovers=all(figures.recovers for figures in baseline.figures))


def on_one_text(baseline: Baseline, before: list[Figures], now: CheckResult) -> tuple[list[Figures], CheckResult]:
    """Without losses where another Python is at work: the text that is trained on is its standard library's source."""
    python = [environment.get("versions", {}).get("python") for environment in (baseline.environment, now.environment)]
    if python[0] == python[1]:
        return before, now
    without = tuple(replace(figures, losses=()) for figures in now.figures)
    return [replace(figures, losses=()) for figures in before], replace(now, figures=without)


def _comparable(baseline: Baseline, task: Measurement) -> list[Figures]:
    """Without what was measured where nothing is measured now."""
    return (
        list(baseline.figures)
        if task.mode is baseline.mode
        else [figures.predicted_only() for figures in baseline.figures]
    )
