"""Measured against predicted, per schedule: the content of comparison.json and of the table on screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from testbed.full_scale.similitude_bound import FullScaleTime
from testbed.grouping import grouped
from testbed.judge.fidelity import Check
from testbed.judge.iterations import IterationRow, median_and_iqr
from testbed.judge.messages import FlowMessages
from testbed.judge.network_metric import CaseFairness, Filled, Seen
from testbed.model.host_prediction import HostPrediction
from testbed.planning import prediction
from testbed.planning.ties import Range
from testbed.thresholds import TIE
from testbed.trace.summary import Summary

BASELINE = prediction.BASELINE
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
    """What a solver proved of the schedule (search/proof.py); None where none made it."""
    predicted_low_s: float | None = None
    """Where the prediction hangs on who comes first, the least that it may be; None elsewhere, as the next."""
    predicted_high_s: float | None = None
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
    notes: list[str] = field(default_factory=list)
    """What was found and leaves the measured time right: a change that was short, or moved no median."""

    full_scale: dict[str, Any] | None = None
    """What it is at full scale (full_scale/similitude_bound.py), also measured; None where a job stands for itself."""
    memory: dict[str, Any] | None = None
    """Bytes by rank, measured and predicted, and what the limit allows (plan/memory_bytes.py)."""
    covered: bool = True
    """Whether the model has all that was measured: if not, the measurement may be `trusted`, but the prediction is of
    something else."""
    left_out: list[str] = field(default_factory=list)
    """What the model has not, a line for each (planning/left_out.py)."""
    packets_lost: int | None = None
    """While it was measured, where losses were asked for or ordinary TCP; None on a network that should lose none."""
    not_taken: list[str] = field(default_factory=list)
    """Questions of the verdict that could not be asked: it is not `trusted` then, whatever the others say."""
    measured_p95_s: float | None = None
    """What one iteration of twenty takes longer than; None in runs of earlier versions, as the next."""
    predicted_p95_s: float | None = None
    """The same of what was predicted of each measured iteration."""
    statistic: str = "median"
    """What `measured_s`, `predicted_s` and the bubbles are of the iterations that count: their "median", or their
    "mean" where jobs run freely."""

    @property
    def partly_checked(self) -> bool:
        """Whether all questions that could be asked are passed, and some could not."""
        return not self.trusted and not self.reasons and bool(self.not_taken)

    @property
    def varies(self) -> bool:
        """Whether its iterations were predicted to differ."""
        return self.predicted_p95_s is not None and self.predicted_p95_s != self.predicted_s

    @property
    def predicted_range_s(self) -> tuple[float, float]:
        """Between what the prediction lies: twice the same where it does not hang on who comes first."""
        if self.predicted_low_s is None or self.predicted_high_s is None:
            return self.predicted_s, self.predicted_s
        return self.predicted_low_s, self.predicted_high_s

    @property
    def error_on_this_host(self) -> float | None:
        """(measured - predicted on this host) / predicted on this host"""
        expected = self.predicted_on_this_host_s
        return None if expected is None else (self.measured_s - expected) / expected


@dataclass(frozen=True, kw_only=True)
class JobComparison(ScheduleComparison):
    """One job of several in one case; its times are from its own start, `label` is the case's."""

    job: str
    """Its name."""
    start_s: float
    """When it began, from the common start of all jobs."""
    predicted_alone_s: float
    """By the model, as if no other job were there."""
    slowdown_predicted: float
    """What the others cost it: `predicted_s` over `predicted_alone_s`."""
    alone_of: str | None = None
    """Of a job that was trained by itself, the label of the case in which the others were at work; else None."""
    measured_alone_s: float | None = None
    """Median iteration by itself, on the same routes; None where it was not trained so."""
    slowdown_measured: float | None = None
    """`measured_s` over `measured_alone_s`; None also where events, which it trains without by itself, have a part."""


@dataclass(frozen=True)
class RunJob:
    """One of several jobs of a run, as manifest and comparison name it; a run with one job does not."""

    name: str
    first_rank: int
    ranks: int
    """How many."""
    workload_seed: int


@dataclass(frozen=True)
class Beside:
    """What a job that is not alone is compared with as well."""

    job: str
    start_s: float
    predicted_alone_s: float
    alone_of: str | None = None


@dataclass(frozen=True)
class MeasuredCase:
    """What was measured of one schedule, and what had been predicted."""

    schedule: str
    label: str
    rows: Sequence[IterationRow]
    """Measured iterations only."""
    predicted: Summary
    checks: Sequence[Check]
    predicted_range: Range | None = None
    """Of the prediction, where it hangs on who comes first."""
    solver: dict[str, Any] | None = None
    on_this_host: HostPrediction | None = None
    disturbed: Sequence[bool] | None = None
    """Per row."""
    messages: Sequence[FlowMessages] = ()
    full_scale: FullScaleTime | None = None
    memory: dict[str, Any] | None = None
    """See plan/memory_bytes.py."""
    left_out: Sequence[str] = ()
    """What the model has not."""
    packets_lost: int | None = None
    """See ScheduleComparison."""
    beside: Beside | None = None
    """None for a job that has the network for itself."""
    predicted_p95_s: float | None = None
    """Of the measured iterations, each with its own prediction."""
    statistic: str = "median"
    """See ScheduleComparison."""
    changed: bool = False
    """Whether events changed links or ranks: a job by itself trains without them."""

    @property
    def reasons(self) -> list[str]:
        """Why it cannot be trusted; [] when it can."""
        return [reason for check in self.checks for reason in check.reasons]

    @property
    def not_taken(self) -> list[str]:
        """The questions that could not be asked."""
        return [check.question for check in self.checks if check.not_taken]

    @property
    def undisturbed_s(self) -> float | None:
        """Median over the iterations that nothing disturbed."""
        if self.disturbed is None or all(self.disturbed):
            return None
        calm = [row.makespan_s for row, far in zip(self.rows, self.disturbed, strict=True) if not far]
        return median_and_iqr(np.array(calm))[0]

    @property
    def measured_s(self) -> float:
        """The median iteration time, or the mean."""
        return float(self.of_all([row.makespan_s for row in self.rows]))

    def of_all(self, values: Sequence[float]) -> float:
        """Of values that iterations have, what counts."""
        return float(np.mean(values) if self.statistic == "mean" else np.median(values))


def compare(runs: Sequence[MeasuredCase]) -> list[ScheduleComparison]:
    """One comparison per run, in the same order. A job's baseline is of a case with the same jobs at work."""
    at_work = _at_work((run.label, _job(run)) for run in runs)
    baselines: dict[tuple[str, frozenset[str]], MeasuredCase] = {}
    alone_s: dict[tuple[str, str], float] = {}
    for run in runs:
        if run.schedule == BASELINE:
            baselines.setdefault((_job(run), at_work[run.label]), run)
        if run.beside and run.beside.alone_of is not None:
            alone_s[run.beside.alone_of, run.beside.job] = run.measured_s
    return [_compared(run, baselines.get((_job(run), at_work[run.label])), alone_s) for run in runs]


def _job(run: MeasuredCase) -> str:
    return run.beside.job if run.beside else ""


def _at_work(found: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Per case the jobs that trained in it; `found` are cases' labels with each of their jobs."""
    return {label: frozenset(names) for label, names in grouped(found).items()}


def _compared(
    run: MeasuredCase, baseline: MeasuredCase | None, alone_s: Mapping[tuple[str, str], float]
) -> ScheduleComparison:
    measured_s, iqr_s = run.measured_s, median_and_iqr(np.array([row.makespan_s for row in run.rows]))[1]
    predicted_s, full = run.predicted.makespan_s, run.full_scale
    known: dict[str, Any] = {
        "schedule": run.schedule,
        "label": run.label,
        "measured_s": measured_s,
        "measured_iqr_s": iqr_s,
        "predicted_s": predicted_s,
        "measured_p95_s": float(np.percentile([row.makespan_s for row in run.rows], 95)),
        "predicted_p95_s": run.predicted_p95_s,
        "error": (measured_s - predicted_s) / predicted_s,
        "bubble_measured": run.of_all([row.bubble_ratio for row in run.rows]),
        "bubble_predicted": run.predicted.bubble_ratio,
        "peak_in_flight_measured": max(max(row.peak_in_flight) for row in run.rows),
        "peak_in_flight_predicted": max(run.predicted.peaks),
        "speedup_measured": baseline.measured_s / measured_s if baseline else None,
        "speedup_predicted": baseline.predicted.makespan_s / predicted_s if baseline else None,
        "trusted": not run.reasons and not run.not_taken,
        "not_taken": run.not_taken,
        "reasons": run.reasons,
        "notes": [note for check in run.checks for note in check.notes],
        "solver": run.solver,
        "predicted_low_s": run.predicted_range and run.predicted_range.low_s,
        "predicted_high_s": run.predicted_range and run.predicted_range.high_s,
        **_on_this_host(run),
        "checks": [check._asdict() | {"ok": check.ok} for check in run.checks],
        "messages": [flow._asdict() for flow in run.messages],
        "memory": run.memory,
        "covered": not run.left_out,
        "left_out": list(run.left_out),
        "packets_lost": run.packets_lost,
        "statistic": run.statistic,
        "full_scale": full and full.as_json() | {"measured_s": measured_s / full.lab_seconds},
    }
    if run.beside is None:
        return ScheduleComparison(**known)
    alone = alone_s.get((run.beside.alone_of or run.label, run.beside.job))
    return JobComparison(
        **known,
        **asdict(run.beside),
        slowdown_predicted=predicted_s / run.beside.predicted_alone_s,
        measured_alone_s=alone,
        slowdown_measured=None if alone is None or run.changed else measured_s / alone,
    )


def _on_this_host(run: MeasuredCase) -> dict[str, Any]:
    host = run.on_this_host
    return {
        "predicted_on_this_host_s": host and host.median_s,
        "on_this_host_low_s": host and host.low_s,
        "on_this_host_high_s": host and host.high_s,
        "disturbed_iterations": None if run.disturbed is None else sum(map(bool, run.disturbed)),
        "measured_undisturbed_s": run.undisturbed_s,
    }


class RankedPairs(NamedTuple):
    """Pairs of schedules of one job, those with the same jobs beside it, by what measuring says of their order."""

    as_predicted: int
    otherwise: int
    """Measured in the order opposite to the predicted one."""
    ties: int
    """Predicted equal, or ranges that overlap: either order agrees with that, and says nothing of the prediction."""


def ranked_pairs(schedules: Sequence[ScheduleComparison], tie: float = TIE) -> RankedPairs:
    """How many pairs measuring puts in the order that was predicted; of those within a tie, either is right.

    Of a prediction that is a range every time in it is as good. The schedules of a job are ranked among themselves,
    those with the same jobs beside it.
    """
    by_predicted = sorted(schedules, key=lambda s: s.predicted_range_s)
    at_work = jobs_at_work(schedules)
    found = {"as_predicted": 0, "otherwise": 0, "ties": 0}
    for faster, slower in combinations(by_predicted, 2):
        if job_of(faster) != job_of(slower) or at_work[faster.label] != at_work[slower.label]:
            continue
        if slower.predicted_range_s[0] <= faster.predicted_range_s[1] * (1 + tie):
            found["ties"] += 1
        else:
            found["as_predicted" if faster.measured_s <= slower.measured_s else "otherwise"] += 1
    return RankedPairs(**found)


def same_ranking(schedules: Sequence[ScheduleComparison], tie: float = TIE) -> bool:
    """Whether measuring contradicts the predicted order of no pair; see `ranked_pairs`."""
    return ranked_pairs(schedules, tie).otherwise == 0


def jobs_at_work(schedules: Sequence[ScheduleComparison]) -> dict[str, frozenset[str]]:
    """Per label of a case the jobs that trained in it."""
    return _at_work((row.label, job_of(row)) for row in schedules)


def job_of(row: ScheduleComparison) -> str:
    """The job that a comparison is of; "" where there is one only."""
    return row.job if isinstance(row, JobComparison) else ""


def as_document(
    identity: dict[str, Any], schedules: Sequence[ScheduleComparison], fairness: Sequence[CaseFairness] = ()
) -> dict[str, Any]:
    """comparison.json: the run's identity, and the lists `schedules` and `fairness`."""
    return {
        **identity,
        "schedules": [asdict(schedule) for schedule in schedules],
        "fairness": [asdict(case) for case in fairness],
    }


def fairness_in(comparison: Mapping[str, Any]) -> list[CaseFairness]:
    """The entries of `fairness` of a comparison that was read, or has just been made; [] of an earlier version's."""
    return [
        CaseFairness(
            **row | {"filled": Filled(**row["filled"])} | {w: Seen(**row[w]) for w in ("predicted", "measured")}
        )
        for row in comparison.get("fairness", ())
    ]


def row_type(comparison: Mapping[str, Any]) -> type[ScheduleComparison]:
    """What the entries of a comparison are: of one job or of several."""
    return JobComparison if comparison.get("jobs") else ScheduleComparison


def rows_of(comparison: Mapping[str, Any]) -> list[ScheduleComparison]:
    """The entries of a comparison that was read, or has just been made."""
    kind = row_type(comparison)
    return [kind(**row) for row in comparison["schedules"]]


def costs_of_others(rows: Sequence[ScheduleComparison]) -> tuple[str, list[float | None]]:
    """What a job's iteration takes longer for the other jobs, as a share of its time without them, per entry.

    "measured" where that was done for any of them, else "predicted"; None for an entry of which that is not known.
    """
    jobs = [row if isinstance(row, JobComparison) and row.alone_of is None else None for row in rows]
    measured = any(row is not None and row.slowdown_measured is not None for row in jobs)
    slowdowns = [None if row is None else row.slowdown_measured if measured else row.slowdown_predicted for row in jobs]
    return "measured" if measured else "predicted", [None if ratio is None else ratio - 1 for ratio in slowdowns]


def jobs_of(document: Mapping[str, Any]) -> list[RunJob]:
    """The jobs that a manifest or a comparison names; [] where there is one job only."""
    return [RunJob(**job) for job in document.get("jobs", ())]
