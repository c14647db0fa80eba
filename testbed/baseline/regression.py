"""Figures of now held against a baseline's: which schedule is slower, faster, less true, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from testbed.baseline.tolerance import TIMES, FigureKind, Tolerances
from testbed.spec.document import validate
from testbed.units import show_change, show_time


@dataclass(frozen=True)
class Figures:
    """What is kept of one schedule; names as in comparison.json. Without a run nothing is measured (None)."""

    schedule: str
    """Label of the case."""
    predicted_s: float
    bubble_predicted: float
    peak_in_flight_predicted: float
    remade_s: float | None = None
    """Predicted time of what the generator makes today; None of a solver, and without pacing."""
    measured_s: float | None = None
    """Median iteration time."""
    measured_iqr_s: float | None = None
    error: float | None = None
    """(measured - predicted) / predicted"""
    bubble_measured: float | None = None
    peak_in_flight_measured: float | None = None
    trusted: bool = True
    reasons: tuple[str, ...] = ()
    """Why it cannot be trusted."""
    losses: tuple[float, ...] = ()
    """Of the measured iterations."""
    job: str = ""
    """Whose they are; "" where there is one job only."""
    control_s: float | None = None
    """Median iteration time of the same training without shaping, in the same run; None where there was no control."""
    goodput_predicted: float | None = None
    """None where no workers fail, as the next one; of baselines of before always."""
    goodput_measured: float | None = None

    @property
    def name(self) -> str:
        """What they are called: the label, of several jobs with the job's name."""
        return f"{self.schedule}: {self.job}" if self.job else self.schedule

    def as_json(self) -> dict[str, Any]:
        """An entry of a baseline's comparison.json."""
        document = asdict(self)
        if not self.job:
            del document["job"]
        optional = "control_s", "goodput_predicted", "goodput_measured"
        return {name: value for name, value in document.items() if name not in optional or value is not None}

    @classmethod
    def from_json(cls, document: object, source: str, at: str) -> Figures:
        """Out of comparison.json, a run's or a baseline's, where it stands `at`. Raises BadInput."""
        return validate(cls, document, source, at=at)

    def predicted_only(self) -> Figures:
        """Without what a run measured."""
        return Figures(
            self.schedule,
            self.predicted_s,
            self.bubble_predicted,
            self.peak_in_flight_predicted,
            self.remade_s,
            job=self.job,
            goodput_predicted=self.goodput_predicted,
        )

    @property
    def recovers(self) -> bool:
        """Whether its workers fail, so that it has a goodput."""
        return self.goodput_predicted is not None

    def value(self, quantity: FigureKind, first: Figures | None = None) -> float | None:
        """The figure that is compared; `first` is the schedule that a speed-up is over."""
        measured = self.measured_s is not None
        match quantity:
            case FigureKind.measured:
                return self.measured_s
            case FigureKind.predicted:
                return self.predicted_s
            case FigureKind.remade:
                return self.remade_s
            case FigureKind.error:
                return self.error
            case FigureKind.bubble:
                return self.bubble_measured if measured else self.bubble_predicted
            case FigureKind.in_flight:
                return self.peak_in_flight_measured if measured else self.peak_in_flight_predicted
            case FigureKind.control:
                return self.control_s
            case FigureKind.goodput:
                return self.goodput_measured if measured else self.goodput_predicted
            case FigureKind.loss:
                return self.losses[-1] if self.losses else None
            case FigureKind.speedup:
                over = first.measured_s if first else None
                return over / self.measured_s if over and self.measured_s else None


class CheckVerdict(StrEnum):
    """What became of a schedule."""

    same = "same"
    slower = "slower"
    faster = "faster"
    less_true = "less true"
    changed = "changed"
    """Another bubble, memory or loss at the same time."""
    machine = "machine"
    """Another time, and the control moved as much: the machine is not what it was. Neither a fault nor none."""
    untrusted = "untrusted"
    failed = "failed"
    missing = "missing"
    """It is on one side only."""


@dataclass(frozen=True)
class Finding:
    """One row of the result: a schedule, or one quantity of it that is outside its tolerance."""

    baseline: str
    schedule: str
    """The name of its figures."""
    verdict: CheckVerdict
    quantity: FigureKind | None = None
    before: float | None = None
    now: float | None = None
    allowed: float | None = None
    """The largest difference that would have been none."""
    note: str = ""

    @property
    def difference(self) -> float | None:
        """now - before"""
        return None if self.before is None or self.now is None else self.now - self.before

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self) | {"difference": self.difference}


@dataclass(frozen=True)
class CheckResult:
    """What repeating a baseline gave."""

    figures: tuple[Figures, ...] = ()
    failure: str = ""
    """Why there are no figures, or not all of them."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Kernel, versions, source: see `testbed.baseline.environment`."""


def judge(name: str, before: Sequence[Figures], now: CheckResult, tolerances: Tolerances) -> list[Finding]:
    """Findings for every schedule of a baseline, in its order: one that says "same", or all that is not."""
    by_name = {figures.name: figures for figures in now.figures}
    findings = []
    for figures in before:
        present = by_name.pop(figures.name, None)
        if present is None:
            verdict = CheckVerdict.failed if now.failure else CheckVerdict.missing
            note = now.failure or "in the baseline, but not in what was repeated"
            findings.append(Finding(name, figures.name, verdict, note=note))
            continue
        first = next(other for other in before if other.job == figures.job)
        first_now = next((other for other in now.figures if other.name == first.name), None)
        findings += _judge_schedule(name, (figures, first), (present, first_now), tolerances)
    findings += [Finding(name, extra, CheckVerdict.missing, note="not in the baseline") for extra in by_name]
    return findings


@dataclass(frozen=True)
class MachineChange:
    """How the control of a schedule moved: the same training without shaping, once when it was saved and once now."""

    before_s: float
    now_s: float
    allowed_s: float

    @property
    def moved(self) -> bool:
        """Whether the machine, or what it computes, is another than it was."""
        return abs(self.now_s - self.before_s) > self.allowed_s

    def explains(self, time: Finding) -> bool:
        """Whether a time moved, beyond its tolerance, no further than the control did: in seconds, or as a share."""
        if time.before is None or time.difference is None or time.allowed is None or not self.moved:
            return False
        moved_s = self.now_s - self.before_s
        machine_s = abs(moved_s) * max(1.0, time.before / self.before_s)
        return (time.difference > 0) == (moved_s > 0) and abs(time.difference) <= time.allowed + machine_s

    def __str__(self) -> str:
        change = show_change(self.now_s / self.before_s - 1, 1)
        state = "moved" if self.moved else "steady"
        return f"control {state}: {show_time(self.before_s)} then, {show_time(self.now_s)} now ({change})"


Side = tuple[Figures, Figures | None]
"""A schedule's figures, and those of the first schedule of the same job."""


def _judge_schedule(name: str, before: Side, now: Side, tolerances: Tolerances) -> list[Finding]:
    schedule, control = before[0].name, _control(before[0], now[0], tolerances)
    doubt = "; ".join(now[0].reasons) if before[0].trusted and not now[0].trusted else None
    untrusted = Finding(
        name, schedule, CheckVerdict.untrusted, FigureKind.measured, *_values(before, now), note=doubt or ""
    )
    if doubt is not None and control is None:
        return [untrusted]
    compared = []
    for quantity in tolerances:
        if quantity is FigureKind.control and control is not None:
            continue  # it judges, and is not judged
        was, is_now = before[0].value(quantity, before[1]), now[0].value(quantity, now[1])
        if was is None and is_now is None:
            continue
        if was is None or is_now is None:
            compared.append(
                Finding(name, schedule, CheckVerdict.missing, quantity, was, is_now, note="on one side only")
            )
            continue
        allowed = _allowed(quantity, was, before[0], tolerances)
        verdict = _verdict(quantity, was, is_now, allowed)
        compared.append(Finding(name, schedule, verdict, quantity, was, is_now, allowed))
    outside = [finding for finding in compared if finding.verdict is not CheckVerdict.same]
    found = [finding for finding in outside if not _follows(finding, outside)] or compared[:1]
    return found if control is None else _with_control(found, control, doubt, untrusted)


def _control(before: Figures, now: Figures, tolerances: Tolerances) -> MachineChange | None:
    """What the control says of the machine; None where a run had none."""
    band = tolerances.get(FigureKind.control)
    if band is None or before.control_s is None or now.control_s is None:
        return None
    return MachineChange(before.control_s, now.control_s, band.allowed(before.control_s))


def _with_control(
    found: Sequence[Finding], control: MachineChange, doubt: str | None, untrusted: Finding
) -> list[Finding]:
    """The findings of a run with a control: what the machine explains is no fault of what is under test.

    `doubt`: why the run cannot be trusted now, where it was trusted before. A time that is outside although the
    control is steady counts all the same.
    """
    time = next((finding for finding in found if finding.quantity is FigureKind.measured), None)
    if time is not None and time.difference is not None and time.verdict is not CheckVerdict.same:
        verdict = CheckVerdict.machine if control.explains(time) else time.verdict
        note = str(control) if doubt is None else f"{control}; untrusted now: {doubt}"
        said = replace(time, verdict=verdict, note=note)
        return [said if finding is time else finding for finding in found]
    if doubt is None:
        return list(found)
    if control.moved:
        untrusted = replace(untrusted, verdict=CheckVerdict.machine, note=f"{control}; untrusted now: {doubt}")
    return [untrusted, *(finding for finding in found if finding.verdict is not CheckVerdict.same)]


def _follows(finding: Finding, outside: Sequence[Finding]) -> bool:
    """Whether another finding says it already: a bubble beside a time, the same schedule made anew as slow as kept."""
    timed = {other.quantity: other for other in outside if other.quantity in TIMES}
    predicted = timed.get(FigureKind.predicted)
    if finding.quantity is FigureKind.remade and predicted is not None:
        return finding.now == predicted.now
    return finding.quantity is FigureKind.bubble and bool(timed)


def _values(before: Side, now: Side) -> tuple[float | None, float | None]:
    return before[0].measured_s, now[0].measured_s


def _allowed(quantity: FigureKind, was: float, before: Figures, tolerances: Tolerances) -> float:
    allowed = tolerances[quantity].allowed(was)
    time = tolerances.get(FigureKind.measured)
    if quantity is FigureKind.error and time is not None and before.measured_s is not None:
        return max(allowed, time.allowed(before.measured_s) / before.predicted_s)
    return allowed


def _verdict(quantity: FigureKind, was: float, now: float, allowed: float) -> CheckVerdict:
    if quantity is FigureKind.error:
        return CheckVerdict.less_true if abs(now) - abs(was) > allowed else CheckVerdict.same
    if abs(now - was) <= allowed:
        return CheckVerdict.same
    match quantity:
        case FigureKind.measured | FigureKind.predicted | FigureKind.remade:
            return CheckVerdict.slower if now > was else CheckVerdict.faster
        case FigureKind.speedup | FigureKind.goodput:
            return CheckVerdict.faster if now > was else CheckVerdict.slower
        case _:
            return CheckVerdict.changed


def is_regression(finding: Finding, *, allow_faster: bool) -> bool:
    """Whether a finding makes a check fail."""
    passes = {CheckVerdict.same, CheckVerdict.machine} | ({CheckVerdict.faster} if allow_faster else set())
    return finding.verdict not in passes
