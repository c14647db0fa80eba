"""A check's result for people and machines: table, Markdown, JSON; each begins with the verdict."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from testbed.baseline import environment, tolerance
from testbed.baseline.regression import CheckResult, CheckVerdict, Finding, is_regression
from testbed.baseline.store import Baseline
from testbed.baseline.tolerance import SHARES, TIMES, FigureKind, Mode, Tolerances
from testbed.units import show_change, show_time

WIDTH = 80


@dataclass(frozen=True)
class Checked:
    """One baseline with what became of it."""

    baseline: Baseline
    mode: Mode
    """How it was checked: a run's baseline may have been predicted only."""
    tolerances: Tolerances
    outcome: CheckResult
    findings: tuple[Finding, ...]

    @property
    def title(self) -> str:
        """Its name, and how it was checked."""
        return f"{self.baseline.name} ({self.mode.in_words})"

    @property
    def hints(self) -> list[str]:
        """What is different now beside the figures."""
        before, now = self.baseline.environment, self.outcome.environment
        if self.mode is Mode.predict:
            before, now = environment.of_model(before), environment.of_model(now)
        return environment.differences(before, now)


@dataclass(frozen=True)
class CheckReport:
    """The result of a check."""

    checked: tuple[Checked, ...]
    allow_faster: bool
    settings: tuple[str, ...] = ()
    """What was laid over every plan on purpose."""

    @property
    def outside(self) -> list[Finding]:
        """The findings that make it fail."""
        findings = (finding for check in self.checked for finding in check.findings)
        return [finding for finding in findings if is_regression(finding, allow_faster=self.allow_faster)]

    @property
    def of_machine(self) -> list[Finding]:
        """The findings that the machine explains: it is not what it was, and nothing can be said of the rest."""
        findings = (finding for check in self.checked for finding in check.findings)
        return [finding for finding in findings if finding.verdict is CheckVerdict.machine]

    @property
    def verdict(self) -> str:
        """One line."""
        schedules = {(finding.baseline, finding.schedule) for check in self.checked for finding in check.findings}
        total = f"{_count(len(self.checked), 'baseline')}, {_count(len(schedules), 'schedule')}"
        if not self.outside and self.of_machine:
            names = {(finding.baseline, finding.schedule) for finding in self.of_machine}
            return (
                f"NOT TO BE TRUSTED: the machine explains {len(names)} of {_count(len(schedules), 'schedule')}, "
                f"whose control moved as well; {total}"
            )
        if not self.outside:
            return f"within tolerance: {total}"
        worst = {(finding.baseline, finding.schedule): finding.verdict for finding in reversed(self.outside)}
        counts = ", ".join(f"{number} {verdict}" for verdict, number in Counter(worst.values()).items())
        return f"OUTSIDE TOLERANCE: {len(worst)} of {_count(len(schedules), 'schedule')} ({counts}); {total}"

    @property
    def hints(self) -> dict[str, list[str]]:
        """What differs from when the baselines were saved -> the baselines for which it does."""
        found: dict[str, list[str]] = {}
        for check in self.checked:
            for hint in check.hints:
                found.setdefault(hint, []).append(check.baseline.name)
        return found

    def remarks(self) -> list[str]:
        """What a reader must know beside the table."""
        lines = [f"{hint} ({_count(len(names), 'baseline')})" for hint, names in self.hints.items()]
        if self.settings:
            lines.insert(0, f"plans changed on purpose: {', '.join(self.settings)}")
        if any(finding.verdict is CheckVerdict.faster for check in self.checked for finding in check.findings):
            lines.append("what is faster for a good reason is saved anew: testbed baseline renew NAME --reason TEXT")
        return lines

    def bands(self) -> list[tuple[str, list[str]]]:
        """(for which baselines, tolerances and their reasons)"""
        groups: dict[tuple[Mode, str], list[Checked]] = {}
        for check in self.checked:
            groups.setdefault((check.mode, str(tolerance.as_document(check.tolerances))), []).append(check)
        modes = Counter(mode for mode, _ in groups)
        result = []
        for (mode, _), members in groups.items():
            names = f": {', '.join(check.baseline.name for check in members)}" if modes[mode] > 1 else ""
            words = {Mode.predict: "predictions", Mode.virtual: "virtual clock", Mode.real: "real clock"}[mode]
            result.append((f"{words}{names}", tolerance.describe(members[0].tolerances, mode)))
        return result


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# --- cells ---------------------------------------------------------------------------------------


def show_value(quantity: FigureKind | None, value: float | None) -> str:
    """A figure in the unit of its quantity."""
    if value is None or quantity is None:
        return "-"
    if quantity in TIMES:
        return f"{value:.5f} s" if abs(value) >= 1 else f"{value * 1e3:.3f} ms"
    match quantity:
        case FigureKind.error:
            return show_change(value, 3)
        case FigureKind.bubble | FigureKind.goodput:
            return f"{value:z.3%}"
        case FigureKind.speedup:
            return f"{value:.3f}x"
        case _:
            return f"{value:.7g}"


_DECIMALS_S = 10
"""Of a difference of times: a median of two of a clock's nanoseconds is half of one; what is less, floats have left."""


def show_difference(finding: Finding) -> str:
    """By how much, absolute and as a share where that says more."""
    difference, quantity = finding.difference, finding.quantity
    if difference is None:
        return "-"
    if quantity in TIMES:
        difference = round(difference, _DECIMALS_S)
    if difference == 0:
        return "0"
    sign = "+" if difference > 0 else "-"
    share = f" {show_change(difference / finding.before, 3)}" if finding.before else ""
    if quantity in TIMES:
        value, _, unit = show_time(abs(difference)).partition(" ")
        return f"{sign}{float(value):.3g} {unit}{share}"
    if quantity in SHARES:
        return f"{difference * 100:+z.3f} points"
    return f"{difference:+.3g}{share}"


def cells_of(finding: Finding) -> tuple[str, ...]:
    """Schedule, quantity, what it was, what it is, difference, verdict."""
    quantity = finding.quantity
    return (
        finding.schedule,
        str(quantity or "-"),
        show_value(quantity, finding.before),
        show_value(quantity, finding.now),
        show_difference(finding),
        str(finding.verdict),
    )


# --- for people ----------------------------------------------------------------------------------

_HEADER = ("schedule", "what", "baseline", "now", "difference", "verdict")


_NAME_WIDTH = 16


def _lines(cells: Sequence[str]) -> list[str]:
    """One line, or two where the name of the schedule is long."""
    name, what, before, now, difference, verdict = cells
    above = [f"  {name}"] if len(name) > _NAME_WIDTH else []
    shown = "" if above else name
    return [*above, f"  {shown:<{_NAME_WIDTH}} {what:<9} {before:>10} {now:>10} {difference:>17}  {verdict}"]


def table(report: CheckReport) -> list[tuple[str, str]]:
    """(line, style) at 80 columns: verdict, a row per schedule or finding, hints, tolerances."""
    style = "bold red" if report.outside else "bold yellow" if report.of_machine else "bold green"
    lines = [(text, style) for text in textwrap.wrap(report.verdict, WIDTH)]
    lines += [("", ""), *((text, "bold") for text in _lines(_HEADER))]
    for check in report.checked:
        lines.append((check.title, "bold"))
        for finding in check.findings:
            bad = is_regression(finding, allow_faster=report.allow_faster)
            style = "red" if bad else "" if finding.verdict is CheckVerdict.same else "yellow"
            lines += [(text, style) for text in _lines(cells_of(finding))]
            lines += [(text, style) for text in _wrapped(finding.note, "    ")]
    lines.append(("", ""))
    for remark in report.remarks():
        lines += [(text, "yellow") for text in _wrapped(remark, "")]
    for title, bands in report.bands():
        lines += [(text, "") for text in _wrapped(f"tolerances, {title}", "")]
        lines += [(text, "dim") for band in bands for text in _wrapped(band, "  ")]
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def markdown(report: CheckReport) -> str:
    """A summary for a pull request: verdict, what is outside, one row per baseline."""
    lines = ["## Baselines", "", f"**{report.verdict}**", ""]
    moved = [f for check in report.checked for f in check.findings if f.verdict is not CheckVerdict.same]
    if moved:
        lines += _markdown_row("baseline", *_HEADER, "note")
        lines += ["| --- | --- | --- | ---: | ---: | ---: | --- | --- |"]
        lines += [row for f in moved for row in _markdown_row(f.baseline, *cells_of(f), f.note)]
        lines.append("")
    lines += [f"* {_escaped(remark)}" for remark in report.remarks()]
    lines += ["", "| baseline | checked by | schedules | result |", "| --- | --- | ---: | --- |"]
    for check in report.checked:
        verdicts = Counter(str(finding.verdict) for finding in check.findings)
        schedules = len({finding.schedule for finding in check.findings})
        result = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
        lines += _markdown_row(check.baseline.name, str(check.mode), str(schedules), result)
    for title, bands in report.bands():
        lines += ["", f"Tolerances, {title}:", "", *(f"* {_escaped(band)}" for band in bands)]
    return "\n".join(lines) + "\n"


def _markdown_row(*cells: str) -> list[str]:
    return [f"| {' | '.join(map(_escaped, cells))} |"]


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace("|", "\\|").replace("<", "&lt;")


# --- for machines --------------------------------------------------------------------------------


def as_document(report: CheckReport) -> dict[str, Any]:
    """For --json."""
    return {
        "verdict": report.verdict,
        "within_tolerance": not report.outside and not report.of_machine,
        "trusted": not report.of_machine,
        "allow_faster": report.allow_faster,
        "settings": list(report.settings),
        "baselines": [
            {
                "name": check.baseline.name,
                "mode": str(check.mode),
                "saved": check.baseline.saved,
                "reason": check.baseline.reason,
                "environment_before": check.baseline.environment,
                "environment_now": dict(check.outcome.environment),
                "hints": check.hints,
                "tolerances": tolerance.as_document(check.tolerances),
                "findings": [finding.as_json() for finding in check.findings],
            }
            for check in report.checked
        ],
    }
