"""Several policies on the same demands: for each the metric, the load of every direction, and what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from testbed.model.network import Floats, Ints
from testbed.plan import routes
from testbed.plan.plan import Case, Plan
from testbed.plan.together import predict_together
from testbed.routing.apply import Demands, on_routes
from testbed.routing.fairness import Metric, bytes_per_direction, flows_per_direction, measured_by
from testbed.routing.registry import Chosen, Routed, route


class Outcome(NamedTuple):
    """What one policy makes of the demands of a case."""

    label: str
    routed: Routed
    metric: Metric
    flows: Ints
    """Per direction, how many of the routed flows cross it."""
    wire_bytes: Floats
    """Per direction, bytes of an iteration: of all flows, also of those that keep to their default routes."""
    iteration_s: tuple[float, ...]
    """Per job, an iteration beside the others on these routes, by the event model."""


def compare(plan: Plan, case: Case, wanted: Demands, policies: Sequence[Chosen], seeds: int = 1) -> list[Outcome]:
    """Every policy's outcome; of one that draws by a `seed` that nobody gave, the median and the worst of `seeds`.

    The order of seeds is that of the two-layer metric.
    """
    base = bytes_of(plan, wanted)
    found = []
    for chosen in policies:
        if seeds == 1 or "seed" in chosen.options or not chosen.takes("seed"):
            found.append(_outcome(plan, case, wanted, base, chosen.label, route(chosen, wanted.problem)))
            continue
        drawn = [route(chosen.with_seed(seed), wanted.problem) for seed in range(1, seeds + 1)]
        drawn.sort(key=lambda one: measured_by(wanted.problem, one.choice).vector())
        for words, made in (("median", drawn[seeds // 2]), ("worst", drawn[0])):
            found.append(_outcome(plan, case, wanted, base, f"{chosen.label}, {words} of {seeds}", made))
    return found


def bytes_of(plan: Plan, wanted: Demands) -> Floats:
    """Per direction, the bytes of what is not routed."""
    between, cards = routes.Between(plan.network), routes.card_routes(plan.network)
    load = np.zeros(len(routes.all_directions(plan.network)))
    for one in wanted.mice:
        for index in cards.get(one.source, ()) + between(one.source, one.target):
            load[index] += one.wire_bytes
    return load


def _outcome(plan: Plan, case: Case, wanted: Demands, base: Floats, label: str, made: Routed) -> Outcome:
    problem = wanted.problem
    routed = on_routes(plan, case, wanted, made)
    trace = predict_together(replace(plan, cases=(routed.case,), framing=routed.framing), routed.case)
    seconds = []
    for number, job in enumerate(plan.jobs):
        mine = replace(
            trace,
            actions=trace.actions[trace.actions["job"] == number],
            messages=trace.messages[trace.messages["job"] == number],
        )
        seconds.append(float(mine.makespans()[0]) - job.start_s)
    return Outcome(
        label,
        made,
        measured_by(problem, made.choice),
        flows_per_direction(problem, made.choice),
        base + bytes_per_direction(problem, made.choice),
        tuple(seconds),
    )
