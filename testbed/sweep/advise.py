"""Planning for a real job: which split, microbatch, memory limit, schedule and routes train it fastest on a network.

Every variant with as many accelerators and tokens is planned, and predicted under every schedule and policy, but for
those whose lower bound is above what is known already. Beside it stands the same job in one datacenter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from testbed.errors import BadInput, DoesNotFit, RunFailed
from testbed.full_scale.similitude import lab_seconds
from testbed.model.bounds import lower_bound
from testbed.plan import costs
from testbed.plan.plan import Plan
from testbed.planning.resolve import BEST, make_plan
from testbed.planning.schedules import QUICK, choices_among, every_family, without_best
from testbed.routing.apply import has_choice
from testbed.routing.policies import PolicyChoice, choose
from testbed.schedule.registry import family_of
from testbed.search.incumbent import Incumbent, Watch
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import DatacenterSpec, Topology
from testbed.spec.workload import Workload
from testbed.sweep.accelerator_split import Split, splits_around
from testbed.sweep.in_time import in_time
from testbed.sweep.reshape import shape_of
from testbed.sweep.variant import (
    Forecast,
    MemoryLimit,
    Unfit,
    Variant,
    forecast,
    given_variant,
    least_held,
    size_of,
    varied,
    with_hbm,
)

MOST_VARIANTS = 10_000
"""What can be planned in some minutes."""

MOST_HBM = 1e15
"""Bytes of an accelerator that holds anything."""

USUAL_POLICY = "greedy-time"
"""Tried beside default routes where a network has others, unless policies are named."""


class Grid(NamedTuple):
    """What is tried; every combination of it."""

    splits: Sequence[Split]
    sizes: Sequence[int]
    """Of a microbatch."""
    memories: Sequence[MemoryLimit | None]
    """None: as the workload says."""
    schedules: Sequence[ScheduleChoice]
    """The workload's own, or families without options."""
    policies: Sequence[PolicyChoice | None]
    """None: default routes."""

    def variants(self) -> list[Variant]:
        """Without schedules and policies."""
        return [Variant(*of) for of in product(self.splits, self.sizes, self.memories)]


def grid_of(
    topology: Topology,
    workload: Workload,
    *,
    splits: Sequence[Split] = (),
    sizes: Sequence[int] = (),
    memories: Sequence[MemoryLimit] = (),
    schedules: Sequence[str] = (),
    policies: Sequence[PolicyChoice] = (),
) -> Grid:
    """What was named of each kind; where nothing was, what is near the workload. Raises BadInput.

    Schedules are then the workload's own and every family that needs neither a solver nor a time limit, policies what
    the network has a use for.
    """
    if workload.full_scale is None and workload.pacing is None:
        expected = "times for F, I and W, or full_scale: without them only a run can tell what anything takes"
        raise BadInput.of(workload.name, "pacing", "none", expected)
    if workload.full_scale is None and (of_hbm := [each for each in memories if each.hbm_bytes is not None]):
        expected = "microbatches in flight: a workload without full_scale has no HBM"
        raise BadInput.of("--memory-limit", "option", str(of_hbm[0]), expected)
    chosen = _named(workload, schedules) if schedules else _usual(workload)
    routed: list[PolicyChoice | None] = list(policies) or [None]
    # whether it fits into HBM is asked of every variant, and is no matter of routes
    roomy = workload if workload.full_scale is None else with_hbm(workload, MOST_HBM)
    if has_choice(make_plan(topology, roomy)) and not policies:
        routed.append(choose(USUAL_POLICY))
    grid = Grid(
        list(dict.fromkeys(splits)) or splits_around(topology, workload),
        sorted({*sizes}) or _sizes_around(workload),
        list(dict.fromkeys(memories)) or [None],
        chosen,
        routed,
    )
    if (count := len(grid.variants())) > MOST_VARIANTS:
        raise BadInput.of(workload.name, "variants", count, f"at most {MOST_VARIANTS}: less of --axes and its like")
    return grid


def _named(workload: Workload, names: Sequence[str]) -> list[ScheduleChoice]:
    expected = "names of schedules: the best of them is the answer"
    return without_best(choices_among(workload.schedules, names), named=True, expected=expected)


def _usual(workload: Workload) -> list[ScheduleChoice]:
    listed = [choice for choice in workload.schedules if choice.schedule != BEST]
    return [
        choice
        for choice in every_family(workload.schedules)
        if choice in listed or not QUICK.keys() & {*family_of(choice).option_names()}
    ]


def _sizes_around(workload: Workload) -> list[int]:
    """Of a microbatch: the workload's, its half, twice and four times as much; its own for a model without tokens."""
    size = size_of(workload)
    try:
        shape_of(workload)
    except BadInput:
        return [size]
    return sorted({max(1, size // 2), size, 2 * size, 4 * size})


# --- variants that can be predicted --------------------------------------------------------------


class Prepared(NamedTuple):
    """A variant with its plan, still without cases."""

    variant: Variant
    workload: Workload
    plan: Plan
    choices: list[ScheduleChoice]
    bound_s: float
    """No schedule of these takes less on default routes."""


def prepare(
    topology: Topology, workload: Workload, variant: Variant, schedules: Sequence[ScheduleChoice]
) -> Prepared | Unfit:
    """A variant of a workload; or why it cannot be, where it can be asked for at all."""
    try:
        made = varied(topology, workload, variant)
        held = least_held(made)
        if held is not None and held.share > 1:
            return Unfit(variant, None, held, "not even one microbatch fits", over_memory=True)
        return planned(topology, variant, made, schedules)
    except BadInput as error:
        return Unfit(variant, None, None, str(error))


def planned(topology: Topology, variant: Variant, workload: Workload, schedules: Sequence[ScheduleChoice]) -> Prepared:
    """A variant whose workload is known, with what that makes of its own schedules' memory limits. Raises BadInput."""
    own = {choice.label: choice for choice in workload.schedules}
    plan, choices = make_plan(topology, workload), [own.get(choice.label, choice) for choice in schedules]
    return Prepared(variant, workload, plan, choices, _bound_s(plan, choices))


def _bound_s(plan: Plan, choices: Iterable[ScheduleChoice]) -> float:
    """The least of the bounds of choices that have a problem; infinite where none has."""
    problems = []
    for choice in choices:
        try:
            problem = costs.problem(plan, choice)
        except DoesNotFit:
            continue  # which is said when its schedule is asked for
        if problem not in problems:
            problems.append(problem)
    return min((lower_bound(problem).seconds for problem in problems), default=math.inf) / (lab_seconds(plan) or 1.0)


def one_datacenter(topology: Topology, prepared: Prepared) -> Prepared:
    """The same variant with all of its ranks in one datacenter, as the first one is inside. Raises BadInput."""
    first = next(iter(topology.datacenters.values()))
    degrees = prepared.workload.parallelism
    nodes = degrees.ranks_of_pipeline * degrees.data
    # not read from a file: it may have more nodes than one that is to be built
    site = DatacenterSpec.model_construct(nodes=nodes, inside=first.inside)
    alone = Topology.model_construct(
        name="one-datacenter", description="", datacenters={"one": site}, links=(), routes=()
    )
    exchange = prepared.workload.data_parallel.model_copy(update={"replicas": None})
    workload = prepared.workload.model_copy(update={"placement": "contiguous", "data_parallel": exchange})
    return planned(alone, prepared.variant, workload, prepared.choices)


# --- searching -----------------------------------------------------------------------------------


@dataclass
class Found:
    """What came of looking through variants."""

    forecasts: list[Forecast] = field(default_factory=list)
    unfit: list[Unfit] = field(default_factory=list)
    beaten: list[Prepared] = field(default_factory=list)
    """Whose lower bound is above the last one that is asked for."""
    untried: list[Prepared] = field(default_factory=list)
    """For which no time was left."""

    def worst_s(self, place: int) -> float:
        """Of the forecast in that place, counted from 1; infinite where there are fewer."""
        return self.forecasts[place - 1].worst_s if len(self.forecasts) >= place else math.inf


class Advice(NamedTuple):
    """The answer."""

    found: Found
    """Forecasts are the best first."""
    one_site: Forecast | None
    """The fastest of all variants in one datacenter; None where nobody looked, or nothing fits."""


def ranked(forecasts: Iterable[Forecast], given: Variant) -> list[Forecast]:
    """The fastest at worst first; of equally fast ones what holds less, and what is as given.

    Times that differ by rounding are equal.
    """

    def place(one: Forecast) -> tuple[object, ...]:
        held = float(f"{one.held.share:.6g}")
        return float(f"{one.worst_s:.9g}"), one.policy is not None, one.variant != given, held, str(one.variant)

    return sorted(forecasts, key=place)


def search(
    prepared: Sequence[Prepared],
    policies: Sequence[PolicyChoice | None],
    top: int,
    given: Variant,
    limit_s: float = math.inf,
    watch: Watch | None = None,
    tell: Callable[[str | None], None] = lambda _: None,
) -> Found:
    """The `top` fastest of all schedules and policies, and what else there is to know of the variants.

    A variant whose lower bound is above the last of those is not predicted; with policies all are, since a bound is one
    on default routes. After `limit_s`, or Ctrl-C, what is left is untried; solvers and policies that search have no
    more than that among them. Raises BadInput.
    """
    incumbent: Incumbent[Forecast] = Incumbent(limit_s)
    found, prunable = Found(), all(policy is None for policy in policies)
    order = sorted(prepared, key=lambda one: (one.variant != given, one.bound_s))
    found.untried = list(order)
    with incumbent.until_interrupted():
        while found.untried and (incumbent.left_s() > 0 or not found.forecasts):
            one = found.untried[0]
            if prunable and one.bound_s > found.worst_s(top):
                found.beaten.append(one)
            else:
                tried = in_time(one.choices, policies, incumbent.left_s())
                forecasts, unfit = forecast(one.variant, one.plan, *tried, watch)
                found.forecasts = ranked([*found.forecasts, *forecasts], given)
                found.unfit += unfit
                for each in forecasts:
                    incumbent.offer(each, each.worst_s)
            del found.untried[0]
            tell(None)
    if incumbent.interrupted and not found.forecasts:
        raise RunFailed("interrupted before anything was predicted")
    return found


def advise(
    topology: Topology,
    workload: Workload,
    grid: Grid,
    *,
    top: int = 10,
    limit_s: float = math.inf,
    watch: Watch | None = None,
    tell: Callable[[str | None], None] = lambda _: None,
) -> Advice:
    """What trains a workload fastest on a topology, of a grid; `tell` hears of every variant twice, as it is planned
    and predicted. Raises BadInput, also where nothing of the grid can be.
    """
    given, unfit, prepared = given_variant(workload), list[Unfit](), list[Prepared]()
    until = time.monotonic() + limit_s
    for variant in grid.variants():
        one = prepare(topology, workload, variant, grid.schedules)
        if isinstance(one, Unfit):
            unfit.append(one)
        else:
            prepared.append(one)
        tell(None)
    found = search(prepared, grid.policies, top, given, limit_s, watch, tell)
    found.unfit = unfit + found.unfit
    if not found.forecasts:
        raise DoesNotFit(_nothing_fits(workload, found.unfit))
    others = {one.choice.label: one.choice for one in found.forecasts if one.policy is not None}  # `joint` takes any
    alone = [one._replace(choices=_widened(one.choices, others)) for one in prepared]
    return Advice(found, _in_one_datacenter(topology, alone, given, until - time.monotonic()))


def _widened(choices: Sequence[ScheduleChoice], others: Mapping[str, ScheduleChoice]) -> list[ScheduleChoice]:
    known = {choice.label for choice in choices}
    return [*choices, *(choice for label, choice in others.items() if label not in known)]


def _nothing_fits(workload: Workload, unfit: Sequence[Unfit]) -> str:
    said = []
    for each in unfit:
        reason = each.reason.removeprefix(f"{workload.name}: ")
        said.append(f"{reason} ({each.held.words()})" if each.held else reason)
    reasons = list(dict.fromkeys(said))
    more = f" (and {len(reasons) - 3} reasons more)" if len(reasons) > 3 else ""
    return f"{workload.name}: nothing that was to be tried can be: {'; '.join(reasons[:3])}{more}"


def _in_one_datacenter(
    topology: Topology, prepared: Sequence[Prepared], given: Variant, limit_s: float
) -> Forecast | None:
    if not topology.links:
        return None
    alone = [one_datacenter(topology, one) for one in prepared]
    forecasts = search(alone, (None,), 1, given, limit_s).forecasts
    return forecasts[0] if forecasts else None
