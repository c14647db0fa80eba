"""What a plan asks for and the model leaves out, in words: predictions say so, on screen and in files."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from testbed.plan import routes
from testbed.plan.plan import Case, Plan
from testbed.plan.ties import range_of_orders
from testbed.plan.together import predict_together
from testbed.spec.topology import Direction
from testbed.thresholds import TIE
from testbed.trace.tables import Trace
from testbed.units import show_size, show_time


def warnings(plan: Plan) -> list[str]:
    """A line for everything that measured times may show and predicted ones do not; [] where the model has it all.

    Of cases whose schedules only a run can make, nothing is known of the queues.
    """
    lines = _of_links(plan)
    if plan.transport != "otn-lossless":
        lines.append(
            f"transport {plan.transport} is not in the model: slow start, delayed acknowledgements and drops "
            "take longer than predicted"
        )
    return lines + _of_queues(plan) + _of_ties(plan)


def _of_links(plan: Plan) -> list[str]:
    crossed = sorted({index for case in plan.cases for route in case.routes for index in route})
    directions = [plan.network.directions[index] for index in crossed]
    lossy = [f"{one.label} {100 * one.loss:g} %" for one in directions if one.loss]
    jittery = [f"{one.label} {show_time(one.jitter_s)}" for one in directions if one.jitter_s]
    lines = []
    if lossy:
        lines.append(f"loss is not in the model ({_listed(lossy)}): what is lost is sent again, later than predicted")
    if jittery:
        lines.append(f"jitter is not in the model ({_listed(jittery)}): predicted with the delay alone")
    return lines


def _of_queues(plan: Plan) -> list[str]:
    directions = routes.all_directions(plan.network)
    if not any(direction.queue_bytes for direction in directions):
        return []
    waiting = {case.label: most_waiting(plan, case, predict_together(plan, case)) for case in _known(plan)}
    full = []
    for index, direction in enumerate(directions):
        over = {label: most[index] for label, most in waiting.items() if 0 < direction.queue_bytes < most[index]}
        if over:
            room, most = show_size(direction.queue_bytes), show_size(max(over.values()))
            full.append(f"{direction.label} has room for {room}, up to {most} wait under {_listed(list(over))}")
    return (
        [f"a queue overflows, which is not in the model ({_listed(full)}): what is dropped comes later"] if full else []
    )


def _of_ties(plan: Plan) -> list[str]:
    if all(job.workload.receives == "early" for job in plan.jobs):
        return []
    hang = []
    for case in _known(plan):
        low_s, high_s = range_of_orders(plan, case)
        if high_s > low_s * (1 + TIE):
            hang.append(f"{case.label} {show_time(low_s)} to {show_time(high_s)}")
    who = "late receives: who comes first of a notice and a message within 10 us of each other decides"
    return [f"{who} ({_listed(hang)})"] if hang else []


def _known(plan: Plan) -> list[Case]:
    """The cases whose schedules are made."""
    return [case for case in plan.cases if all(chosen.rows is not None for chosen in case.jobs)]


def most_waiting(plan: Plan, case: Case, trace: Trace) -> list[float]:
    """Per direction (network cards after the links), the most bytes that the messages of an iteration leave waiting.

    A message comes to its first direction at once, to the next as the one before lets it out; first come, first served.
    """
    ways = _ways(plan, case)
    directions = routes.all_directions(plan.network)
    most, free_s = [0.0] * len(directions), [0.0] * len(directions)
    # first bit and last bit at a hop, a number for order, hop, wire bytes, route
    coming = [
        (float(row["sent_s"]), float(row["sent_s"]), number, 0, float(row["wire_bytes"]), way)
        for number, row in enumerate(trace.messages)
        if (way := ways.get((int(row["source_rank"]), int(row["target_rank"])), ()))
    ]
    heapq.heapify(coming)
    while coming:
        first_s, last_s, number, hop, size, way = heapq.heappop(coming)
        at: Direction = directions[way[hop]]
        begin_s = max(first_s, free_s[way[hop]])
        end_s = max(begin_s + 8 * size / at.rate_bps, last_s)
        free_s[way[hop]] = end_s
        most[way[hop]] = max(most[way[hop]], (end_s - last_s) * at.rate_bps / 8)
        if hop + 1 < len(way):
            onward = (begin_s + at.delay_s, end_s + at.delay_s, number, hop + 1, size, way)
            heapq.heappush(coming, onward)
    return most


def _ways(plan: Plan, case: Case) -> dict[tuple[int, int], tuple[int, ...]]:
    """(source rank, target rank) -> the directions between them in a case, the source's network card first."""
    nodes, cards = routes.nodes_of_ranks(plan), routes.card_routes(plan.network)
    return {
        (flow.source, flow.target): cards.get(nodes[flow.source], ()) + route
        for flow, route in zip(plan.flows, case.routes, strict=True)
    }


def _listed(texts: Sequence[str]) -> str:
    """At most three of them."""
    shown, more = texts[:3], len(texts) - 3
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
