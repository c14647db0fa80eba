"""The rate of a link beyond which nothing is gained: iteration times over rates, and where messages fill the link.

Where a prediction is a range, by who comes first of messages that meet, its worst end decides what is gained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from testbed.errors import BadInput, listed
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.background import MOST_SHARE, background_bps
from testbed.plan.network_state import changed_rates, planned
from testbed.plan.plan import Plan
from testbed.planning import resolve, schedules
from testbed.planning.prediction import iteration_times, ranges_of_plan
from testbed.planning.ties import Range, worst_s
from testbed.search.incumbent import Watch
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import Topology
from testbed.units import show_rate

HALVINGS = 8
"""Of the step of the sweep in which a schedule comes within the share that counts as nothing."""

TimesBySchedule = Mapping[str, float]
"""Per label, the predicted iteration time; a schedule that does not fit is left out."""


class Links(NamedTuple):
    """The directions whose rate is swept, and what a rate in the file is in the lab."""

    name: str
    numbers: tuple[int, ...]
    lab_per_asked: float
    directions_at: Mapping[float, tuple[str, ...]]
    """By their rates in the topology's file, ascending, the labels of those that have it."""

    @property
    def own_bps(self) -> tuple[float, ...]:
        """Their rates in the topology's file, each once, ascending."""
        return tuple(self.directions_at)


class Swept(NamedTuple):
    """One rate, as the topology's file would have it, with the plan for it."""

    rate_bps: float
    plan: Plan
    seconds: TimesBySchedule
    ranges: Mapping[str, Range | None]
    """Per label, what that time may be; None where it is one."""

    def is_order_sensitive(self, label: str) -> bool:
        """Whether the time is more than one prediction."""
        predicted_range = self.ranges.get(label)
        return predicted_range is not None and predicted_range.order_sensitive

    def scaled(self, factor: float) -> Swept:
        """The same with times that are so many times as long."""
        return self._replace(
            seconds={label: seconds * factor for label, seconds in self.seconds.items()},
            ranges={label: span and span.scaled(factor) for label, span in self.ranges.items()},
        )

    def worst_s(self, label: str) -> float:
        """The most that an iteration may take; infinite where the schedule does not fit."""
        return worst_s(self.seconds[label], self.ranges[label]) if label in self.seconds else math.inf


class Knee(NamedTuple):
    """What a schedule makes of rate."""

    label: str
    unlimited_s: float
    """With an infinite rate."""
    unlimited_range: Range | None
    """What that may be; None where it is one time."""
    enough_bps: float | None
    """From here on it is within the share of that; None: nowhere in the sweep."""
    full_bps: float
    """Where a microbatch's messages take as long on the link as the slowest rank computes: S / (B tau) = 1."""

    def scaled(self, factor: float) -> Knee:
        """The same with times that are so many times as long."""
        span = self.unlimited_range
        return self._replace(unlimited_s=self.unlimited_s * factor, unlimited_range=span and span.scaled(factor))


class Sweep(NamedTuple):
    """Rates in ascending order, and every schedule's knee."""

    links: Links
    swept: tuple[Swept, ...]
    knees: tuple[Knee, ...]


def links_of(topology: Topology, plan: Plan, name: str | None) -> Links:
    """The link of that name, or all links alike. Raises BadInput for an unknown one, or where there is none."""
    directions = topology.directions()
    names = dict.fromkeys(direction.link for direction in directions)
    if not names:
        raise BadInput.of(topology.name, "links", "none", "one or more, whose rate is swept")
    if name is not None and name not in names:
        raise BadInput.of("--link", "option", name, f"a link of {topology.name} ({listed(names)})")
    chosen = tuple(index for index, direction in enumerate(directions) if name in (None, direction.link))
    first = chosen[0]
    what = name or (next(iter(names)) if len(names) == 1 else "all links")
    own: dict[float, tuple[str, ...]] = {}
    for direction in sorted((directions[index] for index in chosen), key=lambda one: one.rate_bps):
        own[direction.rate_bps] = (*own.get(direction.rate_bps, ()), direction.label)
    return Links(what, chosen, planned(plan.network).links[first].rate_bps / directions[first].rate_bps, own)


def at_rate(plan: Plan, links: Links, rate_bps: float) -> Plan:
    """The plan without cases, with this rate on these links."""
    network = changed_rates(plan.network, links.numbers, rate_bps * links.lab_per_asked)
    return replace(plan, network=network, framing=resolve.framing_of(network, ()))


def choices_of(plan: Plan, names: Sequence[str]) -> list[ScheduleChoice]:
    """The workload's schedules, or those named. Raises BadInput for `best`, which is another one at every rate."""
    expected = "a schedule that is the same at every rate"
    return schedules.without_best(schedules.choose(plan, names), named=bool(names), expected=expected)


def judged(plan: Plan, choices: Sequence[ScheduleChoice], rate_bps: float, watch: Watch | None = None) -> Swept:
    """A plan of some rate with every schedule made for it, and what the model says of them. Raises BadInput."""
    made = schedules.with_selected(plan, [schedules.make(plan, choices, None, watch)])
    seconds = {case.label: iteration_times(made, case)[0] for case in made.cases}
    return Swept(rate_bps, made, seconds, {label: of_jobs[0] for label, of_jobs in ranges_of_plan(made).items()})


def full_bps(plan: Plan, choice: ScheduleChoice, links: Links) -> float:
    """The rate at which S / (B tau) = 1 on the fullest of these directions; S: what a microbatch sends."""
    problem = costs.problem(plan, choice)
    carried = dict.fromkeys(links.numbers, 0.0)
    for pipeline in problem.pipelines:
        for (a, b), size in zip(pairwise(problem.stage_to_rank), problem.message_bytes, strict=True):
            for index in (*pipeline.route(a, b), *pipeline.route(b, a)):
                if index in carried:
                    carried[index] += size
    return 8 * max(carried.values()) / _tau_s(problem) / links.lab_per_asked


def _tau_s(problem: Problem) -> float:
    """Seconds of a microbatch on the rank that computes longest."""
    busy = [0.0] * problem.n_ranks
    for stage, rank in enumerate(problem.stage_to_rank):
        busy[rank] += problem.forward_s[stage] + problem.whole_backward_s(stage)
    return max(busy)


def least_bps(plan: Plan, links: Links) -> float:
    """The rate from which on background traffic leaves the job its share of all these links; 0 where there is none."""
    taken_bps = background_bps(plan, planned(plan.network))
    return max(taken_bps[index] for index in links.numbers) / MOST_SHARE / links.lab_per_asked


def rates_around(full: float, points: int, least: float = 0.0, name: str = "") -> list[float]:
    """Rates from a quarter of `full`, or from `least` on, to 32 times `full`, in equal ratios. Raises BadInput where
    nothing crosses the link of this name."""
    if not full:
        raise BadInput.of("--link", "option", name, "a link that messages of the pipeline cross")
    first = max(full / 4, least)
    last = max(32 * full, 2 * first)
    return [first * (last / first) ** (number / (points - 1)) for number in range(points)]


def sweep(
    plan: Plan,
    links: Links,
    choices: Sequence[ScheduleChoice],
    rates: Sequence[float],
    share: float,
    tell: Callable[[str], None] = lambda _: None,
    watch: Watch | None = None,
) -> Sweep:
    """Every schedule at every rate, and its knees; `share` of the time is what counts as nothing gained."""
    swept = []
    for rate in sorted(rates):
        swept.append(judged(at_rate(plan, links, rate), choices, rate, watch))
        tell(show_rate(rate))
    unlimited = judged(at_rate(plan, links, math.inf), choices, math.inf, watch)
    knees = []
    for case in unlimited.plan.cases:
        (choice,) = (choice for choice in choices if choice.label == case.label)
        limit_s = unlimited.worst_s(case.label) * (1 + share)
        enough, full = _enough(plan, links, choice, swept, limit_s, watch), full_bps(plan, choice, links)
        found = unlimited.seconds[case.label], unlimited.ranges[case.label]
        knees.append(Knee(case.label, *found, enough, full))
        tell(case.label)
    return Sweep(links, tuple(swept), tuple(knees))


def _enough(
    plan: Plan, links: Links, choice: ScheduleChoice, swept: Sequence[Swept], limit_s: float, watch: Watch | None
) -> float | None:
    """The least rate from which on the sweep stays within the limit, found by halving the step before it."""
    place = len(swept)
    while place and swept[place - 1].worst_s(choice.label) <= limit_s:
        place -= 1
    if place in (0, len(swept)):
        return swept[0].rate_bps if place == 0 else None
    low, high = swept[place - 1].rate_bps, swept[place].rate_bps
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        found = judged(at_rate(plan, links, middle), [choice], middle, watch)
        low, high = (low, middle) if found.worst_s(choice.label) <= limit_s else (middle, high)
    return high
