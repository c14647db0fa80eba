"""Figures of baselines and the runs behind them, as tests make them up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from testbed.baseline import check_report, store
from testbed.baseline.regression import CheckResult, CheckVerdict, Figures, judge
from testbed.baseline.tolerance import Band, FigureKind, Mode, Tolerances, default_tolerances
from testbed.judge.comparison import ScheduleComparison
from testbed.plan.plan import Plan
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose, make, with_selected

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
KEPT, FORMAT_1 = ROOT / "results/baselines/longhaul-pp4", ROOT / "tests/recorded/format-1-baseline"
ENVIRONMENT = {"kernel": {"key": "6.12-abc", "sha256": "0123456789"}, "versions": {"python": "3.11.2"}}

VIRTUAL = default_tolerances(Mode.virtual, paced=True)
REAL = default_tolerances(Mode.real, paced=True)
CONTROLLED = default_tolerances(Mode.real, paced=True, controlled=True)


def figures(schedule: str = "1f1b", measured_s: float = 0.8, predicted_s: float = 0.8) -> Figures:
    return Figures(
        schedule,
        predicted_s,
        bubble_predicted=0.25,
        peak_in_flight_predicted=4,
        remade_s=predicted_s,
        measured_s=measured_s,
        measured_iqr_s=0.0,
        error=(measured_s - predicted_s) / predicted_s,
        bubble_measured=0.25,
        peak_in_flight_measured=4,
        losses=(5.0, 4.5),
    )


def planned_with(names: Sequence[str], *settings: str) -> Plan:
    """The shipped plan with these schedules."""
    plan = load_plan(LONGHAUL, PP4, settings=settings)
    return with_selected(plan, [make(plan, choose(plan, names), strict=True)])


FACTS = {
    "name": "a job",
    "shaper": "netem",
    "transport": "otn-lossless",
    "clock": "virtual",
    "ranking_as_predicted": True,
}


def write_run(directory: Path) -> None:
    """What is read of a finished run."""
    kept = figures().as_json()
    row = {name: kept[name] for name in kept.keys() & ScheduleComparison.__dataclass_fields__.keys()}
    row |= {"label": kept["schedule"], "speedup_measured": 1.0, "speedup_predicted": 1.0}
    (directory / "comparison.json").write_text(json.dumps({**FACTS, "schedules": [row]}))
    manifest = {
        "clock": "virtual",
        "kernel": "7.2",
        "vm": {"kernel": ENVIRONMENT["kernel"]},
        "shaper": "netem",
        "python": "3.11.2",
        "packages": {},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    rows = {"schedule": ["1f1b"] * 3, "job": [0] * 3, "warmup": [True, False, False], "loss": [9.0, 5.0, 4.5]}
    pd.DataFrame(rows).to_parquet(directory / "iterations.parquet")


def verdicts(before: Figures, now: Figures, bands: dict[FigureKind, Band] | None = None) -> dict[str, CheckVerdict]:
    found = judge("b", [before], CheckResult((now,)), VIRTUAL if bands is None else bands)
    return {str(finding.quantity): finding.verdict for finding in found}


def checked(
    now: CheckResult, *before: Figures, mode: Mode = Mode.virtual, bands: Tolerances = VIRTUAL
) -> check_report.Checked:
    baseline = store.Baseline("longhaul", mode, "2026-01-01", "", False, "netem", bands, ENVIRONMENT, before)
    return check_report.Checked(baseline, mode, bands, now, tuple(judge("longhaul", before, now, bands)))
