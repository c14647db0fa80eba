"""What may be claimed of a study, and whether what was measured bears it out."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations
from typing import NamedTuple

import pandas as pd

from testbed.spec.study import StudyAxis, quantity
from testbed.thresholds import TIE
from testbed.units import show_change, show_time


class ClaimVerdict(StrEnum):
    """What became of a claim."""

    holds = "holds"
    fails = "fails"
    undecided = "undecided"
    """What it speaks of was not measured, or cannot be trusted."""


class Judged(NamedTuple):
    """A claim and its verdict."""

    claim: str
    verdict: ClaimVerdict
    why: str
    """The nearest that it came to failing, or where and by how much it failed, in words."""
    cells: int
    """So many did it speak of."""


class StudyTables(NamedTuple):
    """What claims are judged by."""

    table: pd.DataFrame
    """As outcomes.table_of."""
    cells: pd.DataFrame
    """As outcomes.cells_of: what each is of, why there is nothing of it, and whether its order was as predicted."""
    axes: Mapping[str, StudyAxis]
    measured: bool
    """Whether times are those measured, or predicted ones: of these, the worse end of a range."""


class Conditions(NamedTuple):
    """Where a claim is made: columns and the values that they have there."""

    conditions: Sequence[tuple[str, str]]

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows that are meant."""
        chosen = table
        for name, value in self.conditions:
            number, column = quantity(value), f"{name}_value"
            if name not in chosen:  # a job, of a table of cells
                continue
            if number is not None and column in chosen:
                near = (chosen[column] - number).abs() <= 1e-9 * abs(number)
                chosen = chosen[near | (chosen[name] == value)]
            else:
                chosen = chosen[chosen[name] == value]
        return chosen


class Operand(NamedTuple):
    """What is compared: so many times what a schedule takes, or a time."""

    factor: float
    label: str
    seconds: float | None

    def times(self, seconds: Mapping[str, float]) -> float | None:
        """What it comes to where schedules take this; None where its schedule is not there."""
        taken = self.seconds if self.seconds is not None else seconds.get(self.label)
        return None if taken is None else self.factor * taken

    def words(self) -> str:
        """The schedule, or the time."""
        return self.label or show_time(self.seconds or 0.0)


@dataclass(frozen=True)
class Claim(ABC):
    """Something that can be judged, at some places of the grid."""

    text: str
    """As the study has it."""
    places: Conditions

    @property
    def of_published(self) -> bool:
        """Whether it is about times that somebody has published."""
        return False

    @abstractmethod
    def judged(self, evidence: StudyTables) -> Judged:
        """Whether it holds."""


_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}


class _Place(NamedTuple):
    """What the schedules took at one place of the grid, repetitions together: medians, in seconds."""

    grid: tuple[str, str, str]
    """Topology, workload, and of several jobs which one, else ""."""
    several: Set[str]
    """Which of "topology" and "workload" the study has several of."""
    shown: Mapping[str, str]
    values: Mapping[str, float]
    """By axis, as the study has it and in SI units."""
    low_s: Mapping[str, float]
    high_s: Mapping[str, float]
    """By label; of what was measured both are the same."""
    published_s: Mapping[str, float]
    """By label, where something is published."""
    untrusted: Set[str]
    """Labels whose times cannot be trusted; a claim that does not speak of them does not mind."""

    def trusts(self, *labels: str) -> bool:
        """Whether what was measured of all these can be trusted; a time in seconds has no label and always can."""
        return self.untrusted.isdisjoint(labels)

    @property
    def words(self) -> str:
        """Where it is."""
        topology, workload, job = self.grid
        files = {"topology": topology, "workload": workload}
        places = {name: of for name, of in files.items() if name in self.several} | dict(self.shown)
        places |= {"job": job} if job else {}
        return ", ".join(f"{name}={value}" for name, value in places.items()) or f"{workload} on {topology}"


class _Margin(NamedTuple):
    """By how much a claim holds at a place, as a share: negative where it fails."""

    share: float
    words: str
    trusted: bool


def _places(evidence: StudyTables, places: Conditions) -> Iterator[_Place]:
    chosen = places.of(evidence.table)
    columns = ("measured_s", "measured_s") if evidence.measured else ("predicted_low_s", "predicted_high_s")
    chosen = chosen.assign(job=chosen["job"].fillna(""))
    several = {name for name in ("topology", "workload") if evidence.cells[name].nunique() > 1}
    for where, rows in chosen.groupby(["topology", "workload", "job", *evidence.axes], sort=False):
        topology, workload, job, *shown = map(str, where)
        numbers = {name: float(rows[f"{name}_value"].iloc[0]) for name in evidence.axes}
        label = rows["label"].astype(str)
        low, high = (rows[name].fillna(rows["predicted_s"]) for name in columns)
        untrusted = set(label[~rows["trusted"].fillna(value=False).astype(bool)]) if evidence.measured else set()
        published = rows["published_s"].dropna()
        low_s, high_s, published_s = (dict(each.groupby(label).median()) for each in (low, high, published))
        by_axis = dict(zip(evidence.axes, shown, strict=True))
        yield _Place((topology, workload, job), several, by_axis, numbers, low_s, high_s, published_s, untrusted)


def _concluded(
    claim: Claim, asked: pd.DataFrame, margins: Sequence[_Margin], nothing: str = "nothing that it speaks of is there"
) -> Judged:
    """The verdict that the worst of the margins leads to; `asked` are the cells that the claim speaks of, `nothing` is
    said where there are no margins."""
    missing = asked[asked["failed"] != ""]
    failed = sorted(margin for margin in margins if margin.share < 0)
    if failed:
        more = f" (and at {len(failed) - 1} more)" if len(failed) > 1 else ""
        return Judged(claim.text, ClaimVerdict.fails, f"{failed[0].words}{more}", len(asked))
    if not margins:
        return Judged(claim.text, ClaimVerdict.undecided, nothing, len(asked))
    if len(missing):
        why = f"{len(missing)} of {len(asked)} cells are missing: {missing['failed'].iloc[0]}"
        return Judged(claim.text, ClaimVerdict.undecided, why, len(asked))
    if untrusted := [margin.words for margin in margins if not margin.trusted]:
        return Judged(claim.text, ClaimVerdict.undecided, f"cannot be trusted: {untrusted[0]}", len(asked))
    nearest = min(margins)
    return Judged(claim.text, ClaimVerdict.holds, nearest.words, len(asked))


@dataclass(frozen=True)
class RelationClaim(Claim):
    """A schedule takes less, or more, than another one or a time; each maybe somewhere else on some axes."""

    left: Operand
    right: Operand
    sign: str
    at_left: Conditions
    at_right: Conditions
    """Of either side alone; on all other axes both are at the same place."""

    def judged(self, evidence: StudyTables) -> Judged:
        """Whether it holds at every place, of ranges at their worse ends."""
        apart = {name for side in (self.at_left, self.at_right) for name, _ in side.conditions}
        sides = [Conditions((*self.places.conditions, *side.conditions)) for side in (self.at_left, self.at_right)]
        of_left, of_right = ({_elsewhere(one, apart): one for one in _places(evidence, side)} for side in sides)
        margins = [
            margin
            for where, place in of_left.items()
            if where in of_right and (margin := self._margin(place, of_right[where])) is not None
        ]
        asked = pd.concat([side.of(evidence.cells) for side in sides]).drop_duplicates("cell")
        return _concluded(self, asked, margins)

    def _margin(self, one: _Place, other: _Place) -> _Margin | None:
        less = self.sign.startswith("<")
        of_one, of_other = (one.high_s, other.low_s) if less else (one.low_s, other.high_s)
        left, right = self.left.times(of_one), self.right.times(of_other)
        if left is None or right is None:
            return None
        share = (right - left) / right if less else (left - right) / right
        holds = _COMPARED[self.sign](left, right)
        share = max(share, 0.0) if holds else min(share, -math.ulp(1.0))
        ratio = (left / self.left.factor) / (right / self.right.factor)
        words = f"{self.left.words()} is {ratio:.3f} x {self.right.words()} at {one.words}"
        if self.at_left.conditions:
            words = f"{self.left.words()} at {one.words} is {ratio:.3f} x {self.right.words()} at {other.words}"
        return _Margin(share, words, one.trusts(self.left.label) and other.trusts(self.right.label))


def _elsewhere(place: _Place, apart: Set[str]) -> tuple[str, ...]:
    """Where it is, but for these."""
    names = {**dict(zip(("topology", "workload", "job"), place.grid, strict=True)), **place.shown}
    return tuple(value for name, value in names.items() if name not in apart)


@dataclass(frozen=True)
class FastestClaim(Claim):
    """A schedule takes the least of all, or as little as another one within a tie."""

    label: str

    def judged(self, evidence: StudyTables) -> Judged:
        """Whether it does at every place."""
        margins = []
        for place in _places(evidence, self.places):
            others = {label: low_s for label, low_s in place.low_s.items() if label != self.label}
            if self.label not in place.high_s or not others:
                continue
            second = min(others, key=lambda label: others[label])
            share = others[second] / place.high_s[self.label] - 1
            words = f"{second} takes {show_change(share)} at {place.words}"
            margins.append(_Margin(0.0 if -TIE < share < 0 else share, words, not place.untrusted))
        return _concluded(self, self.places.of(evidence.cells), margins)


@dataclass(frozen=True)
class OrderClaim(Claim):
    """Schedules were measured in the order of their predictions, but for ties."""

    def judged(self, evidence: StudyTables) -> Judged:
        """Whether they were, in every cell."""
        asked = self.places.of(evidence.cells)
        known = asked[asked["order_as_predicted"].notna()]
        trusted = self.places.of(evidence.table).groupby("cell")["trusted"].all()
        margins = [
            _Margin(1.0 if as_predicted else -1.0, f"cell {cell}", bool(trusted.get(cell, default=False)))
            for cell, as_predicted in zip(known["cell"], known["order_as_predicted"], strict=True)
        ]
        found = _concluded(self, self.places.of(evidence.cells), margins)
        return found._replace(why=f"in {len(margins)} cells") if found.verdict is ClaimVerdict.holds else found


@dataclass(frozen=True)
class PublishedOrderClaim(Claim):
    """Schedules come in the order of their published times, but for those that lie this near to each other there."""

    near: float

    @property
    def of_published(self) -> bool:
        """See Claim."""
        return True

    def judged(self, evidence: StudyTables) -> Judged:
        """Whether they do, wherever two of them are published."""
        margins, pairs = [], 0
        for place in _places(evidence, self.places):
            known = [label for label in place.published_s if label in place.high_s]
            pairs += len(known) * (len(known) - 1) // 2
            for fast, slow in permutations(known, 2):
                if place.published_s[fast] * (1 + self.near) < place.published_s[slow]:
                    share = place.low_s[slow] / place.high_s[fast] - 1
                    words = f"{slow} takes {show_change(share)} over {fast} at {place.words}"
                    margins.append(_Margin(0.0 if -TIE < share < 0 else share, words, place.trusts(fast, slow)))
        near = f"all that is published lies within {self.near:.0%} of each other" if pairs else "no two are published"
        return _concluded(self, self.places.of(evidence.cells), margins, near)


@dataclass(frozen=True)
class ErrorClaim(Claim):
    """A time is within a share of what was predicted, or of the nearer end of its range; or of what is published."""

    limit: float
    label: str
    """"" for all schedules."""
    to_published: bool

    @property
    def of_published(self) -> bool:
        """See Claim."""
        return self.to_published

    def judged(self, evidence: StudyTables) -> Judged:
        """Whether every time is, that the model covers, or that something is published of."""
        rows = self.places.of(evidence.table)
        rows = rows[rows["label"] == self.label] if self.label else rows
        if self.to_published:
            rows = rows[rows["error_to_published"].notna()]
            beyond = rows["error_to_published"]
        else:
            rows = rows[rows["covered"].fillna(value=True) & rows["measured_s"].notna()]
            low, high = (rows[f"predicted_{end}_s"].fillna(rows["predicted_s"]) for end in ("low", "high"))
            beyond = (rows["measured_s"] - high).clip(lower=0) / high - (low - rows["measured_s"]).clip(lower=0) / low
        trusted = rows["trusted"].fillna(value=not evidence.measured)
        digits = 1 if self.to_published else 4
        margins = [
            _Margin(self.limit - abs(off), f"{label} {show_change(off, digits)} in cell {cell}", bool(trusted))
            for off, label, cell, trusted in zip(beyond, rows["label"], rows["cell"], trusted, strict=True)
        ]
        return _concluded(self, self.places.of(evidence.cells), margins)


@dataclass(frozen=True)
class CrossingClaim(Claim):
    """Of two schedules one is faster before, the other behind a value of an axis that lies between two others."""

    one: str
    other: str
    between: tuple[float, float]
    axis: str

    def judged(self, evidence: StudyTables) -> Judged:
        """Whether they cross there, once, wherever on the other axes."""
        axis = self.axis
        lines: dict[tuple[str, ...], list[_Place]] = {}
        for place in _places(evidence, self.places):
            elsewhere = (shown for name, shown in place.shown.items() if name != axis)
            if {self.one, self.other} <= place.high_s.keys() and not math.isnan(place.values[axis]):
                lines.setdefault((*place.grid, *elsewhere), []).append(place)
        margins = []
        for line in lines.values():
            crossings = self._crossings(line, axis)
            low, high = self.between
            where = " and ".join(evidence.axes[axis].show(at) for at in crossings)
            words = f"they cross at {axis} = {where}" if crossings else f"they cross nowhere along {axis}"
            at = crossings[0] if len(crossings) == 1 else math.nan
            share = min(at - low, high - at) / max(abs(high), abs(low)) if len(crossings) == 1 else -1.0
            trusted = all(place.trusts(self.one, self.other) for place in line)
            margins.append(_Margin(share, words, trusted))
        return _concluded(self, self.places.of(evidence.cells), margins)

    def _crossings(self, line: Sequence[_Place], axis: str) -> list[float]:
        """Where one becomes faster than the other: between two values by a straight line, or in the middle of those
        between which both are as fast; before the first and behind the last that differ they may be."""
        found, ties, last = list[float](), list[float](), None
        for place in sorted(line, key=lambda one: one.values[axis]):
            at, one_s, other_s = place.values[axis], place.high_s[self.one], place.high_s[self.other]
            difference_s = one_s - other_s
            if abs(difference_s) < TIE * max(one_s, other_s):
                ties.append(at)
                continue
            if last is not None and last[1] * difference_s < 0:
                before, before_s = last
                on_line = before + (at - before) * before_s / (before_s - difference_s)
                found.append((ties[0] + ties[-1]) / 2 if ties else on_line)
            ties, last = [], (at, difference_s)
        return found
