"""`cassini`: jobs begin so much later than each other that CASSINI's compatibility score is largest.

The score is the paper's (compatibility.py says how we know it). Ours is where demands come from: a job sends on a
direction while its messages, as the event model predicts an iteration of it alone, would be sent one after the other at
the least rate of their route so far; and the circle of jobs that train in rounds: a round. The paper's is a common
multiple of the iterations, of jobs that run freely, whose iterations drift past each other where they are unequal, so
that every shift is worth nearly the same. The score knows nothing of what a job waits for, so nothing of what a
collision costs; `interleave` asks the event model for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from testbed.model.simulate import simulate_jobs
from testbed.plan.events import at_work
from testbed.plan.plan import Case, Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.planning.drawn_iterations import typical_loads
from testbed.planning.prediction import loads_of_case
from testbed.routing.compatibility import DemandSpan, SharedLink, best_shifts, demand_of, mean_score
from testbed.routing.interleave import routes_by, with_starts
from testbed.routing.planner import PlannedCases, Planner, PlannerInput
from testbed.trace.tables import NOTICE, Trace
from testbed.units import show_time

CircleSteps = Annotated[int, Field(ge=2, le=1440)]


class JobDemand(NamedTuple):
    """What a job wants of the network, by itself."""

    iteration_s: float
    spans: dict[int, list[DemandSpan]]
    """By number of a direction."""


def cassini(
    task: PlannerInput,
    steps: CircleSteps = 72,
    circle: Literal["round", "multiple"] = "round",
    routes: str = "greedy-time",
) -> PlannedCases:
    """Every case on the routes of the policy `routes`, with the shifts between its jobs of the best score.

    The shortest iteration is cut into `steps` (72: of 5 degrees); the others have as many as come nearest. In a `round`
    every job begins again when the one that takes longest is done; a `multiple` is of jobs that do not wait.
    """
    routed, cases, remarks = routes_by("cassini", routes), [], []
    for case in task.plan.cases:
        chosen = routed(replace(task.plan, cases=(case,)), case, task.reach)
        working = at_work(task.plan, case)
        if len(working) < 2:
            cases.append(chosen)
            remarks.append(f"{case.label}: one job alone has nothing to be compatible with: only its routes are chosen")
            continue
        wanted = demands_alone(task.plan, chosen)
        if circle == "round":
            longest_s = max(one.iteration_s for one in wanted)
            wanted = [one._replace(iteration_s=longest_s) for one in wanted]
        step_s = min(one.iteration_s for one in wanted) / steps
        counts = [max(1, round(one.iteration_s / step_s)) for one in wanted]
        links = shared_links(task.plan, chosen, wanted, counts)
        # the same shifts, however the jobs were listed
        order = sorted(range(len(working)), key=lambda place: task.plan.jobs[working[place]].name)
        found = _ordered(links, counts, order)
        starts_s = [0.0] * len(task.plan.jobs)
        for number, shift, one, count in zip(working, found, wanted, counts, strict=True):
            starts_s[number] = shift * one.iteration_s / count
        first = min(starts_s[number] for number in working)
        cases.append(with_starts(chosen, [max(begin_s, first) for begin_s in starts_s]))
        later = ", ".join(show_time(begin_s) for begin_s in cases[-1].starts_s)
        before, after = mean_score(links, [0] * len(counts)), mean_score(links, found)
        remarks.append(
            f"{case.label}: jobs begin at {later}: compatibility {after:.4f}, all at once {before:.4f}, "
            f"over {len(links)} shared directions"
        )
    return PlannedCases(task.plan.flows, tuple(cases), tuple(remarks))


PLANNER = Planner(cassini)


def demands_alone(plan: Plan, case: Case) -> list[JobDemand]:
    """Per job at work in a case, what an iteration of it alone wants. Raises BadInput for a job without pacing."""
    loads, found = typical_loads(plan, case, loads_of_case(plan, case)), []
    for number, load in zip(at_work(plan, case), loads, strict=True):
        alone = simulate_jobs([load._replace(start_s=0.0)])
        named = alone.as_job(number, plan.jobs[number].mesh.ranks)
        found.append(JobDemand(float(alone.makespans()[0]), _spans(plan, case, named)))
    return found


def shared_links(plan: Plan, case: Case, wanted: Sequence[JobDemand], steps: Sequence[int]) -> list[SharedLink]:
    """The directions that several jobs send on, with what all of them want there in so many steps."""
    directions = RankRoutes(plan, case).network.everything
    users = {index: sum(index in one.spans for one in wanted) for one in wanted for index in one.spans}
    return [
        SharedLink(
            directions[index].rate_bps,
            tuple(
                demand_of(one.spans.get(index, []), one.iteration_s / count, count)
                for one, count in zip(wanted, steps, strict=True)
            ),
        )
        for index in sorted(users)
        if users[index] > 1
    ]


def _spans(plan: Plan, case: Case, trace: Trace) -> dict[int, list[DemandSpan]]:
    """By direction, when a job alone sends on it: message after message, in the order in which they come there."""
    route_of, coming = RankRoutes(plan, case), dict[int, list[tuple[float, float, float]]]()
    directions, messages = route_of.network.everything, trace.messages[trace.messages["kind"] != NOTICE]
    columns = ("source_rank", "target_rank", "sent_s", "wire_bytes")
    for source, target, sent_s, size in zip(*(messages[name].tolist() for name in columns), strict=True):
        at_s, rate_bps = sent_s, float("inf")
        for index in route_of(source, target):
            rate_bps = min(rate_bps, directions[index].rate_bps)
            coming.setdefault(index, []).append((at_s, size, rate_bps))
            at_s += directions[index].delay_s
    found: dict[int, list[DemandSpan]] = {}
    for index, mine in coming.items():
        free_s = 0.0
        for at_s, size, rate_bps in sorted(mine):
            begin_s = max(free_s, at_s)
            free_s = begin_s + 8 * size / rate_bps
            found.setdefault(index, []).append(DemandSpan(begin_s, free_s, rate_bps))
    return found


def _ordered(links: Sequence[SharedLink], counts: Sequence[int], order: Sequence[int]) -> list[int]:
    """The best shifts with the jobs taken in an order, in the order in which they are listed."""
    turned = [link._replace(demands_bps=tuple(link.demands_bps[place] for place in order)) for link in links]
    shifts = best_shifts(turned, [counts[place] for place in order])
    return [shift for _, shift in sorted(zip(order, shifts, strict=True))]
