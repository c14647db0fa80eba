"""Several policies on the same demands: for each the metric, the load of every direction, and what is predicted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.plan.network_state import NetworkState, network_at
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import numbered, one_stands_for_all, predict_together, times_and_ranges
from testbed.planning.rerouted_case import ReroutedCase
from testbed.planning.ties import EVENTS, Range
from testbed.routing.apply import Demands, demands, on_routes, taken
from testbed.routing.completion_times import Completions, completion_times
from testbed.routing.fairness import Metric, bytes_per_direction, flows_per_direction, measured_by
from testbed.routing.planner import Planner, PlannerInput, Reach
from testbed.routing.policies import PolicyChoice, Routed, plan_with, route
from testbed.search.incumbent import Watch


class PolicyOutcome(NamedTuple):
    """What one policy makes of the demands of a case."""

    label: str
    wanted: Demands
    """What was routed: that of the case, or of the one that a planner made of it."""
    routed: Routed
    metric: Metric
    flows: Ints
    """Per direction, how many of the routed flows cross it."""
    wire_bytes: Floats
    """Per direction, bytes of an iteration: of all flows, also of those that keep to their default routes."""
    iteration_s: tuple[float, ...]
    """Per job, an iteration beside the others on these routes, by the event model."""
    predicted_ranges: tuple[Range | None, ...]
    """Per job, what it may be by who comes first of messages that meet; None where nothing hangs on that, or where that
    was not asked ..."""
    orders_tried: bool
    """... since one run of the event model costs more than EVENTS: sixteen for each policy are seconds and more."""
    completions: Completions
    """Flow completion times: of all draws of the policy, not of this one alone."""


class PolicyComparison(NamedTuple):
    """Policies to compare, and how."""

    policies: Sequence[PolicyChoice]
    reach: Reach
    seeds: int = 1
    """Draws of a policy with a `seed` that nobody gave: the median and the worst by the two-layer metric."""


def compare(
    plan: Plan, case: Case, wanted: Demands, asked: PolicyComparison, watch: Watch | None = None
) -> list[PolicyOutcome]:
    """Every policy's outcome on the demands of a case. Raises as `route`, and as planners do."""
    found, choices = [], _Choices(plan, case, wanted)
    for chosen in asked.policies:
        if isinstance(chosen.policy, Planner):
            found += _of_planner(plan, case, chosen, PlannerInput(replace(plan, cases=(case,)), asked.reach, watch))
        elif asked.seeds == 1 or "seed" in chosen.options or not chosen.takes("seed"):
            made = route(chosen, wanted.problem)
            found.append(choices.outcome(chosen.label, made, choices.completions(chosen, [made])))
        else:
            drawn = [route(chosen.with_seed(seed), wanted.problem) for seed in range(1, asked.seeds + 1)]
            drawn.sort(key=lambda drawing: measured_by(wanted.problem, drawing.choice).vector())
            completions = choices.completions(chosen, drawn)
            for words, made in (("median", drawn[asked.seeds // 2]), ("worst", drawn[0])):
                label = f"{chosen.label}, {words} of {asked.seeds}"
                found.append(choices.outcome(label, made, completions))
    return found


def bytes_of(network: NetworkState, wanted: Demands) -> Floats:
    """Per direction, the bytes of what is not routed."""
    load = np.zeros(len(network.everything))
    for mouse in wanted.mice:
        for index in network.card_routes.get(mouse.source, ()) + network.default_route(mouse.source, mouse.target):
            load[index] += mouse.wire_bytes
    return load


def _of_planner(plan: Plan, case: Case, chosen: PolicyChoice, task: PlannerInput) -> list[PolicyOutcome]:
    """What a planner makes of the case, which may be another schedule, with flows of its own."""
    begin = time.perf_counter()
    made = plan_with(chosen, task)
    seconds = time.perf_counter() - begin
    found = []
    for planned_case in made.cases:
        further = replace(plan, flows=made.flows, cases=(planned_case,))
        wanted = demands(further, planned_case, task.reach)
        remark = "; ".join((*(() if planned_case.label == case.label else (planned_case.label,)), *made.remarks))
        routed = Routed(np.array(taken(further, planned_case, wanted), np.int64), seconds, remark)
        choices = _Choices(further, planned_case, wanted)
        found.append(choices.outcome(chosen.label, routed, choices.completions(chosen, [routed])))
    return found


class _Predicted(NamedTuple):
    """Of one choice of routes."""

    completions: Floats
    """Flow completion times."""
    times_s: tuple[float, ...] | None
    """Per job, as `iteration_times`, where there are too many events for ranges; else None."""


class _Choices:
    """The case on one choice of routes after another, each predicted once, whichever policies make it."""

    def __init__(self, plan: Plan, case: Case, wanted: Demands) -> None:
        self._plan, self._case, self._wanted = plan, case, wanted
        self._rerouted = ReroutedCase(plan, case) if one_stands_for_all(plan, case) else None
        self._known: dict[tuple[int, ...], _Predicted] = {}

    def completions(self, chosen: PolicyChoice, drawn: Sequence[Routed]) -> Completions:
        """Flow completion times under every draw of a policy."""
        return Completions(chosen.label, tuple(self._predicted(made).completions for made in drawn))

    def outcome(self, label: str, made: Routed, completions: Completions) -> PolicyOutcome:
        """What comes of a choice."""
        plan, wanted, times_s = self._plan, self._wanted, self._predicted(made).times_s
        ranges: tuple[Range | None, ...] | None = None
        if times_s is None:
            times_s, ranges = times_and_ranges(plan, self._on(made), EVENTS)
        return PolicyOutcome(
            label,
            wanted,
            made,
            measured_by(wanted.problem, made.choice),
            flows_per_direction(wanted.problem, made.choice),
            bytes_of(network_at(plan, self._case), wanted) + bytes_per_direction(wanted.problem, made.choice),
            times_s,
            (None,) * len(times_s) if ranges is None else ranges,
            ranges is not None,
            completions,
        )

    def _on(self, made: Routed) -> Case:
        return on_routes(self._plan, self._case, self._wanted, made.choice.tolist())

    def _predicted(self, made: Routed) -> _Predicted:
        choice = tuple(made.choice.tolist())
        if choice not in self._known:
            routed, times_s = self._on(made), None
            if self._rerouted is None:
                trace = predict_together(self._plan, routed)
            else:
                run = self._rerouted.run(routed)
                trace = numbered(self._plan, routed, run.trace())
                times_s = run.times_s() if run.events > EVENTS else None
            self._known[choice] = _Predicted(completion_times(self._plan, routed, self._wanted, trace), times_s)
        return self._known[choice]
