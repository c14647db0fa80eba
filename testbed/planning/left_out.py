"""What a plan asks for and the model leaves out, in words: predictions say so, on screen and in files."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

from testbed.pipeline.ir import Action, Kind
from testbed.pipeline.problem import Problem
from testbed.plan.costs import problem_of_case
from testbed.plan.events import at_work
from testbed.plan.network_state import network_at, planned
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.tensor_exchanges import of_actions
from testbed.planning.prediction import RangesByLabel, predict_together, ranges_of_plan
from testbed.planning.ring_order import of_rings
from testbed.spec.topology import Direction
from testbed.trace.tables import Trace
from testbed.units import show_size, show_time


def warnings(plan: Plan, ranges: RangesByLabel | None = None) -> list[str]:
    """A line for everything that measured times may show and predicted ones do not; [] where the model has it all.

    With what is left out, predictions that are ranges: `ranges` of the plan, where they are known. And rings whose
    replicas had better stand in another order.
    """
    return left_out(plan) + of_ties(plan, ranges) + of_rings(plan)


def left_out(plan: Plan) -> list[str]:
    """A line for everything that is not in the model.

    Of cases whose schedules only a run can make, nothing is known of the queues.
    """
    return _left_out(plan, range(len(plan.jobs)))


def left_out_of(plan: Plan, case: Case, job: int) -> list[str]:
    """The same of one job in one case: what its measured time may show and its predicted one does not."""
    return _left_out(replace(plan, cases=(case,)), (job,))


def _left_out(plan: Plan, jobs: Sequence[int]) -> list[str]:
    """Of the network and of these jobs."""
    lines = _of_links(plan)
    if plan.transport != "otn-lossless":
        lines.append(
            f"transport {plan.transport} is not in the model: slow start, delayed acknowledgements and drops "
            "take longer than predicted"
        )
    for job in (plan.jobs[number] for number in jobs):
        if job.workload.data_parallel.collective.by_gloo:
            lines.append(_of_gloo(plan, job))
    return lines + _of_tensor_ranks(plan) + _of_queues(plan)


def _called(plan: Plan, case: Case, number: int) -> str:
    """A job in a case."""
    return case.label if len(plan.jobs) == 1 else f"{case.label}: {plan.jobs[number].name}"


def _of_tensor_ranks(plan: Plan) -> list[str]:
    """Slots that are too short for what tensor ranks send each other in them over network cards.

    The model knows when that occupies the cards, not that an action takes longer for it.
    """
    short: dict[str, None] = {}
    for case, (number, job) in product(_known(plan), enumerate(plan.jobs)):
        if job.mesh.tp > 1 and job.workload.pacing:
            short |= dict.fromkeys(_short_slots(problem_of_case(plan, case, job=number), job))
    if not short:
        return []
    return [
        "slots have no room for what tensor ranks send each other over network cards, behind a message of their own: "
        f"actions will overrun ({_listed(list(short))})"
    ]


def _short_slots(problem: Problem, job: Job) -> Iterator[str]:
    for stage, rank in enumerate(problem.stage_to_rank if problem.exchanged else ()):
        card = problem.links[problem.pipelines[0].rank_cards[rank]]
        for kind, exchanges in zip((Kind.F, Kind.I), of_actions(job, problem.stage_to_rank, stage), strict=True):
            action = Action(stage, kind, 0)
            size = problem.exchanged_bytes(action) + max(problem.message_bytes, default=0.0)
            takes_s = size * card.seconds_per_byte + card.delay_s * sum(exchange.number for exchange in exchanges)
            slot_s = problem.duration(action)
            if takes_s > slot_s:
                yield f"{job.name}: {kind} of stage {stage} {show_time(takes_s)} of {show_time(slot_s)}"


_GLOO_SEGMENT_BYTES = 1 << 20
"""The longest segment of gloo's all-reduce (kMaxSegmentSize)."""


def gloo_all_reduce_s(members: int, size_bytes: float, round_trip_s: float, rate_bps: float) -> float:
    """About how long gloo's own all-reduce takes where its slowest edge has this round trip and rate.

    Each member's share goes round in segments of at most 1 MiB, two at least. A segment is sent when it has been asked
    for, and two are asked for at once, so that two take a round trip: (members - 1) times the segments of a share, for
    reducing and gathering together, and once the time of all bytes on the wire. Within 5 % of what benchmarks/
    collectives.py measures.
    """
    segments = max(2, math.ceil(size_bytes / (members * _GLOO_SEGMENT_BYTES)))
    return (members - 1) * segments * round_trip_s + 8 * size_bytes / rate_bps


def _of_gloo(plan: Plan, job: Job) -> str:
    network = planned(plan.network)
    node_of = dict(zip(job.mesh.ranks, job.nodes, strict=True))
    trips, rates = [0.0], [math.inf]
    for rank in range(job.mesh.pp):
        members = [node_of[job.mesh.rank(replica, rank)] for replica in range(job.mesh.dp)]
        for one, other in pairwise([*members, members[0]]):
            crossed = (*network.default_route(one, other), *network.default_route(other, one))
            trips.append(sum(network.links[index].delay_s for index in crossed))
            rates += [network.links[index].rate_bps for index in crossed]
    size = job.workload.stage_bytes(job.mesh.pp)
    about = show_time(gloo_all_reduce_s(job.mesh.dp, size, max(trips), min(rates)))
    return (
        "gloo's own all-reduce is not in the model: predicted as a ring of messages, but its segments are sent when "
        f"they are asked for, two at once; one of {show_size(size)} takes about {about} here"
    )


def _of_links(plan: Plan) -> list[str]:
    crossed = {
        (index, links[index])
        for case in plan.cases
        for links in [network_at(plan, case).links]
        for route in case.routes
        for index in route
    }
    directions = [direction for _, direction in sorted(crossed)]
    lossy = [f"{direction.label} {100 * direction.loss:g} %" for direction in directions if direction.loss]
    jittery = [f"{direction.label} {show_time(direction.jitter_s)}" for direction in directions if direction.jitter_s]
    lines = []
    if lossy:
        lines.append(f"loss is not in the model ({_listed(lossy)}): what is lost is sent again, later than predicted")
    if jittery:
        lines.append(f"jitter is not in the model ({_listed(jittery)}): predicted with the delay alone")
    return lines


def _of_queues(plan: Plan) -> list[str]:
    directions = planned(plan.network).everything
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


def of_ties(plan: Plan, ranges: RangesByLabel | None = None) -> list[str]:
    """A line that names the predictions that are ranges; [] where none is. `ranges` as in `warnings`."""
    ranged, known = [], ranges_of_plan(plan) if ranges is None else ranges
    for case in _known(plan):
        for number, predicted_range in zip(at_work(plan, case), known[case.label], strict=True):
            if predicted_range is not None and predicted_range.order_sensitive:
                least, most = map(show_time, predicted_range)
                ranged.append(f"{_called(plan, case, number)} {least} to {most}")
    who = "who comes first of messages that meet at a link within microseconds decides"
    return [f"{who} ({_listed(ranged)})"] if ranged else []


def _known(plan: Plan) -> list[Case]:
    """The cases whose schedules are made."""
    return [case for case in plan.cases if all(chosen.rows is not None for chosen in case.jobs)]


def most_waiting(plan: Plan, case: Case, trace: Trace) -> list[float]:
    """Per direction (network cards after the links), the most bytes that the messages of an iteration leave waiting.

    A message comes to its first direction at once, to the next as the one before lets it out; first come, first served.
    """
    route_of = RankRoutes(plan, case)
    directions = route_of.network.everything
    most, free_s = [0.0] * len(directions), [0.0] * len(directions)
    # first bit and last bit at a hop, a number for order, hop, wire bytes, route
    coming = [
        (float(row["sent_s"]), float(row["sent_s"]), number, 0, float(row["wire_bytes"]), route)
        for number, row in enumerate(trace.messages)
        if (route := route_of(int(row["source_rank"]), int(row["target_rank"])))
    ]
    heapq.heapify(coming)
    while coming:
        first_s, last_s, number, hop, size, route = heapq.heappop(coming)
        at: Direction = directions[route[hop]]
        begin_s = max(first_s, free_s[route[hop]])
        end_s = max(begin_s + 8 * size / at.rate_bps, last_s)
        free_s[route[hop]] = end_s
        most[route[hop]] = max(most[route[hop]], (end_s - last_s) * at.rate_bps / 8)
        if hop + 1 < len(route):
            onward = (begin_s + at.delay_s, end_s + at.delay_s, number, hop + 1, size, route)
            heapq.heappush(coming, onward)
    return most


def _listed(texts: Sequence[str]) -> str:
    """At most three of them."""
    shown, more = texts[:3], len(texts) - 3
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
