"""Did anything change while a case was measured? Its messages in every iteration, and iterations against each other.

A median hides a change that begins late, ends early, or comes and goes. Here every iteration is looked at by itself:
each flow's messages are held against what they took before the run (on the virtual clock, against the model), and the
times of iterations against those at the beginning. What changed is named: the flows, the directions that they share or
the rank that sends or gets them, and the iterations. The run is untrusted where the quoted median is not that of the
iterations in which nothing changed; else the change is noted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.grouping import grouped
from testbed.thresholds import CHANGE_CERTAIN, CHANGED_FLOW_SHARE, Limit
from testbed.units import show_time

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_SELDOM = 0.03
"""Of the orders that iterations can come in, this share may be taken for a change that is none."""
_ORDERS = 400
"""That are drawn of those ..."""
_MOST_VALUES, _LEAST_ORDERS = 40_000_000, 100
"""... in all of them about, where many rows of values are looked at, but at least so many orders."""

_SAME = 0.1
"""Of what may be; iterations that differ by less are alike."""

_MOST_NAMED = 3
"""Flows, and places, in a sentence."""


class FlowParts(NamedTuple):
    """What the messages of a flow took beyond what they should, in each measured iteration; seconds."""

    source_rank: int
    target_rank: int
    kind: str
    route: tuple[str, ...]
    """The directions that it crosses, a network card first."""
    shift_s: Floats
    """Per iteration, since before the run (virtual clock: since predicted); nan where no arrival is known."""
    limit_s: float
    """How much that may be in an iteration."""

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.kind}s from rank {self.source_rank} to {self.target_rank}"

    @property
    def changed(self) -> Bools:
        """In which iterations it is more."""
        far: Bools = np.nan_to_num(np.abs(self.shift_s)) > self.limit_s
        return far

    @property
    def worst_s(self) -> float:
        """The median of what it is where it is more, with its sign; 0 where it never is."""
        return float(np.median(self.shift_s[self.changed])) if self.changed.any() else 0.0


class Changes(NamedTuple):
    """What was found."""

    iterations: Bools
    """Per measured iteration, whether messages or its time changed in it."""
    by_messages: Bools
    """Whether messages did."""
    named: str
    """Iterations, flows and places in words; "" where nothing changed."""


def find(
    numbers: Sequence[int], times_s: Floats, flows: Sequence[FlowParts], far: Bools, *, loses: bool = False
) -> Changes:
    """What changed in the iterations of these `numbers`. `far`: those whose times are too far from what they should be.

    Without any whose messages changed, `far` alone says which iterations are meant. `loses`: of a network that loses
    packets flows are left out whose messages came late as chance has it.
    """
    by_messages: Bools = np.any([flow.changed for flow in flows], axis=0) if flows else np.zeros(len(times_s), bool)
    changed = by_messages | far
    return Changes(changed, by_messages, _named(numbers, flows, changed, loses) if changed.any() else "")


def smoothed(values: Floats) -> Floats:
    """The running median of three: what a machine did to one iteration is no change of a link."""
    if len(values) < 3:
        return values
    ends = np.concatenate([values[2:3], values, values[-3:-2]])
    found: Floats = np.array([_median(ends[place : place + 3]) for place in range(len(values))])
    return found


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def since_the_beginning(times_s: Floats, limit: float, calm: Bools | None = None, *, by_chance: bool = False) -> Bools:
    """Iterations from the one on where times made the largest step, if it is more than the share `limit` and certain;
    and single ones as far from the median. A step test: the step is where the means before and after differ most for
    their counts (CUSUM), and is one if the medians differ by far more than neighbours do.

    Only those that are `calm` tell of steps, where most are and three at least: one first iteration that the machine
    disturbed, by its own accounts, would make a change of all that follow. On a network that loses or delays packets
    `by_chance`, as it was asked to, iterations are slow by chance: a single one is no side of a step, nor is what as
    many orders as `_SELDOM` of the same iterations have, by their ranks; several that are far from the median are
    those that lost.
    """
    middle, far = float(np.median(times_s)), np.zeros(len(times_s), bool)
    told = np.arange(len(times_s)) if calm is None or 2 * calm.sum() < len(calm) else np.flatnonzero(calm)
    each_s, count = times_s[told], len(told)
    if count < 3:
        return far
    noise = neighbours_scatter(each_s)
    compared = _ranks(np.round(each_s / (_SAME * limit * middle))) if by_chance else each_s
    sizes = _step_sizes(compared)
    best = _Step.of(each_s, 1 + int(np.argmax(sizes)))
    certain_s = CHANGE_CERTAIN * noise * np.sqrt(1 / best.at + 1 / (count - best.at))
    if abs(best.seconds) > max(limit * middle, certain_s) and not (
        by_chance and (1 in (best.at, count - best.at) or _chance(compared, float(sizes.max())) > _SELDOM)
    ):
        far[told[best.at] :] = True
        return far
    far |= np.abs(times_s - middle) > max(limit * middle, 2 * CHANGE_CERTAIN * noise)
    return np.zeros_like(far) if by_chance and far.sum() > 1 else far


def _step_sizes(values: Floats) -> Floats:
    """By place of a cut, from 1 on, how far apart the means before and after it are, for their counts; values as of the
    last axis."""
    count = values.shape[-1]
    before, after = np.arange(1, count), np.arange(count - 1, 0, -1)
    sums = np.cumsum(values, axis=-1)
    means = sums[..., :-1] / before, (sums[..., -1:] - sums[..., :-1]) / after
    sizes: Floats = np.abs(means[1] - means[0]) * np.sqrt(before * after)
    return sizes


def _chance(values: Floats, size: float, count: int = _ORDERS) -> float:
    """In what share of all orders of these values the largest step is of this size or larger, by so many that are
    drawn: a permutation test."""
    orders = np.random.default_rng(0).permuted(np.tile(values, (count, 1)), axis=1)
    as_large = int((_step_sizes(orders).max(axis=1) >= size * (1 - 1e-9)).sum())
    return (1 + as_large) / (1 + count)  # the order that came is one of them


def more_than_chance(rows: Sequence[Floats], limit: float) -> list[bool]:
    """Of rows of values of the same iterations, which have a step that chance seldom makes in any of them, however they
    scatter: by their ranks, in orders of the iterations that are drawn for all rows together (Westfall and Young's
    maxT, 1993), so that rows which change together are no more chances than one. Of what may be the `limit`; what is
    not known (nan) has the middle rank.
    """
    ranks = np.array([_ranks_of_known(row, limit) for row in rows])
    if ranks.shape[-1] < 3:
        return [False] * len(rows)
    sizes, draw = _step_sizes(ranks).max(axis=-1), np.random.default_rng(0)
    count = min(_ORDERS, max(_LEAST_ORDERS, _MOST_VALUES // ranks.size))
    most = np.array([_step_sizes(draw.permutation(ranks, axis=1)).max() for _ in range(count)])
    as_large = (most[:, None] >= sizes * (1 - 1e-9)).sum(axis=0)
    found: list[bool] = ((1 + as_large) / (1 + count) <= _SELDOM).tolist()
    return found


def _ranks_of_known(row: Floats, limit: float) -> Floats:
    known = ~np.isnan(row)
    ranks: Floats = np.full(len(row), (1 + known.sum()) / 2)
    ranks[known] = _ranks(np.round(row[known] / (_SAME * limit)))
    return ranks


def _ranks(values: Floats) -> Floats:
    """The place of each in the order of all; equal ones share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


class _Step(NamedTuple):
    at: int
    seconds: float

    @staticmethod
    def of(times_s: Floats, at: int) -> _Step:
        before, after = times_s[:at], times_s[at:]
        return _Step(at, _typical(after, before) - _typical(before, after))


def _typical(values: Floats, others: Floats) -> float:
    """The median; of two the one that is nearer to that of the others, since either may be unlike all."""
    middle = float(np.median(others))
    return float(min(values, key=lambda value: abs(value - middle)) if len(values) == 2 else np.median(values))


def off_share(times_s: Floats, changed: Bools) -> float:
    """By what share the median over all iterations is off that over those in which nothing changed; nan without any."""
    if changed.all():
        return float("nan")
    return float(np.median(times_s) / np.median(times_s[~changed]) - 1)


def off_range(time_s: float, low_s: float, high_s: float) -> float:
    """By what share a time lies outside the range of its prediction, with its sign."""
    return (time_s - min(max(time_s, low_s), high_s)) / low_s


def reason(off: float, limit: Limit, found: Changes, *, loses: bool = False) -> str:
    """Why a run that changed cannot be trusted. `loses`: of a network that loses packets, with what may be meant."""
    unlike = "" if np.isnan(off) else f", and the median is {off:+.2%} off that of the others (limit {limit.per_cent})"
    before = int(np.argmax(found.iterations))
    settles = loses and off > 0 and before and not found.by_messages.any() and found.iterations[before:].all()
    more = f"; TCP's windows are wide before the first losses: try {before} more for warm-up" if settles else ""
    return f"something changed in {found.named}{unlike}{more}"


def from_first(values: Floats) -> Floats:
    """How far each is from the median of the first ones: links were as asked for just before."""
    return values - _median(values[: max(3, len(values) // 4)])


def scatter(values: Floats) -> float:
    """A standard deviation of a normal distribution, by the median distance from the median; 0 of none."""
    known = values[~np.isnan(values)]
    return 1.4826 * float(np.median(np.abs(known - np.median(known)))) if len(known) else 0.0


def neighbours_scatter(values: Floats) -> float:
    """The same by what neighbours differ by, which a step among them does not change; 0 of less than two."""
    known = values[~np.isnan(values)]
    return 1.4826 * float(np.median(np.abs(np.diff(known)))) / math.sqrt(2) if len(known) > 1 else 0.0


def _named(numbers: Sequence[int], flows: Sequence[FlowParts], changed: Bools, loses: bool) -> str:
    where = f"iterations {_runs(numbers, changed)} of {numbers[0]} to {numbers[-1]}"
    moved = sorted((flow for flow in flows if flow.changed.any()), key=lambda flow: -abs(flow.worst_s))
    if not moved:
        beyond = "later than losses make them in as many iterations" if loses else "beyond their limits"
        return (
            f"{where}: no flow's messages {beyond}, so a few messages, many flows a little, ranks slower "
            "than their slots, or something that the model lacks"
        )
    worst_s = abs(moved[0].worst_s)
    moved = [flow for flow in moved if abs(flow.worst_s) > CHANGED_FLOW_SHARE * worst_s]
    descriptions = [
        f"{flow.name} {show_time(abs(flow.worst_s))} {'longer' if flow.worst_s > 0 else 'shorter'} (limit "
        f"{show_time(flow.limit_s)})"
        for flow in moved[:_MOST_NAMED]
    ]
    left = len(moved) - _MOST_NAMED
    more = f", {left} more flow{'s' * (left > 1)}" if left > 0 else ""
    return f"{where}: {', '.join(descriptions)}{more}; {' and '.join(blamed(moved, flows))}"


def _runs(numbers: Sequence[int], changed: Bools) -> str:
    """Iterations as ranges: 4, 7 to 12."""
    found = []
    for far, run in groupby(zip(numbers, changed.tolist(), strict=True), key=lambda pair: pair[1]):
        if far:
            members = [number for number, _ in run]
            found.append(f"{members[0]}" if len(members) == 1 else f"{members[0]} to {members[-1]}")
    return ", ".join(found)


def blamed(moved: Sequence[FlowParts], flows: Sequence[FlowParts]) -> list[str]:
    """What explains best which flows moved and which did not: directions of links, else what a rank sends or gets.

    Greedy: the place whose flows are most nearly those that moved, then one for what that leaves. "" is never named.
    """
    left = {flow[:3] for flow in moved}
    known = {flow[:3] for flow in flows if not np.isnan(flow.shift_s).all()}
    if len(known) > _MOST_NAMED and left >= known:
        return ["every flow whose arrivals are known: all links, or all ranks"]
    places = {place: known.intersection(members) for place, members in grouped(_places_of(flows)).items()}
    found: list[str] = []
    while left and len(found) < _MOST_NAMED:
        best = max(places, key=lambda place: _likeness(places[place], left))
        if not places[best] & left:
            break
        directions = {direction for flow in flows for direction in flow.route}
        same = [
            place for place in places if places[place] == places[best] and (place in directions) == (best in directions)
        ]
        found.append(" or ".join(same[:_MOST_NAMED]))
        left -= places[best]
    return found


def _places_of(flows: Sequence[FlowParts]) -> Iterator[tuple[str, tuple[int, int, str]]]:
    for flow in flows:
        yield from ((direction, flow[:3]) for direction in flow.route)
    for flow in flows:
        yield f"what leaves rank {flow.source_rank} (its node's interface, or the rank itself)", flow[:3]
        yield f"what comes to rank {flow.target_rank}", flow[:3]


def _likeness(members: set[tuple[int, int, str]], moved: set[tuple[int, int, str]]) -> float:
    """The harmonic mean of how much of each is in the other."""
    return 2 * len(members & moved) / (len(members) + len(moved)) if members else 0.0
