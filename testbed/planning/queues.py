"""What waits in the queues of links: what has no room there is dropped, and sent again later than predicted."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from testbed.errors import few
from testbed.plan.background import background_bps
from testbed.plan.connecting import neighbours_of
from testbed.plan.framing import wire_bytes
from testbed.plan.network_state import network_at, planned
from testbed.plan.plan import Case, Plan, Route
from testbed.plan.routes import nodes_of_ranks, routes_of_ranks
from testbed.planning.prediction import predict_together
from testbed.spec.topology import Direction
from testbed.trace.tables import Trace
from testbed.units import show_size

CONNECTING = "ranks that connect"


def of_queues(plan: Plan, cases: Sequence[Case]) -> list[str]:
    """A line where a queue has no room for what waits in it under one of the cases; else []."""
    directions = planned(plan.network).everything
    if not any(direction.queue_bytes for direction in directions):
        return []
    waiting = {case.label: most_waiting(plan, case, predict_together(plan, case)) for case in cases}
    connecting = [most_waiting_to_connect(plan, case) for case in cases]
    waiting[CONNECTING] = [max(most) for most in zip(*connecting, strict=True)]
    full = []
    for index, direction in enumerate(directions):
        over = {label: most[index] for label, most in waiting.items() if 0 < direction.queue_bytes < most[index]}
        if over:
            room, most = show_size(direction.queue_bytes), show_size(max(over.values()))
            full.append(f"{direction.label} has room for {room}, up to {most} wait under {few(list(over))}")
    return [f"a queue overflows, which is not in the model ({few(full)}): what is dropped comes later"] if full else []


_UNCOUNTED = 0.01
"""Acknowledgements, notices and headers that wait beside messages, as a share of them: 0.2 % was too little."""


def most_waiting(plan: Plan, case: Case, trace: Trace) -> list[float]:
    """Per direction (network cards after the links), the most bytes that the messages of an iteration leave waiting,
    with what background traffic brings meanwhile, and room for what is not counted (`_UNCOUNTED`)."""
    ways = _ways(plan, case)
    sent = (
        (
            float(row["sent_s"]),
            float(row["wire_bytes"]),
            ways.get((int(row["source_rank"]), int(row["target_rank"])), ()),
        )
        for row in trace.messages
    )
    return _most_waiting(plan, case, sent)


def most_waiting_to_connect(plan: Plan, case: Case) -> list[float]:
    """The same of what all ranks send each other at once when they connect, the first of these messages.

    What is dropped then makes TCP's windows narrow, and the iterations after it longer.
    """
    ways, sent = _ways(plan, case), list[tuple[float, float, Route]]()
    for job in plan.jobs:
        size, first = wire_bytes(job.workload.message_bytes()), job.mesh.first_rank
        for one, other in neighbours_of(plan, job):
            for ends in ((first + one, first + other), (first + other, first + one)):
                sent.append((0.0, size, ways.get(ends, ())))
    return _most_waiting(plan, case, sent)


def _most_waiting(plan: Plan, case: Case, sent: Iterable[tuple[float, float, Route]]) -> list[float]:
    """Of messages by when they are sent, bytes on the wire and way, in the order in which they are posted.

    A message comes to its first direction at once, to the next as the one before lets it out; first come, first served.
    """
    network = network_at(plan, case)
    directions = network.everything
    others_bps = background_bps(plan, network)
    most, free_s = [0.0] * len(directions), [0.0] * len(directions)
    # first bit and last bit at a hop, a number for order, hop, wire bytes, way
    coming = [(sent_s, sent_s, number, 0, size, way) for number, (sent_s, size, way) in enumerate(sent) if way]
    heapq.heapify(coming)
    while coming:
        first_s, last_s, number, hop, size, way = heapq.heappop(coming)
        at: Direction = directions[way[hop]]
        begin_s = max(first_s, free_s[way[hop]])
        end_s = max(begin_s + 8 * size / (at.rate_bps - others_bps[way[hop]]), last_s)
        free_s[way[hop]] = end_s
        most[way[hop]] = max(most[way[hop]], (1 + _UNCOUNTED) * (end_s - last_s) * at.rate_bps / 8)
        if hop + 1 < len(way):
            onward = (begin_s + at.delay_s, end_s + at.delay_s, number, hop + 1, size, way)
            heapq.heappush(coming, onward)
    return most


def _ways(plan: Plan, case: Case) -> Mapping[tuple[int, int], Route]:
    """(source rank, target rank) -> the directions between them in a case, the source's network card first."""
    nodes, cards = nodes_of_ranks(plan), network_at(plan, case).card_routes
    return {
        (source, target): cards.get(nodes[source], ()) + route
        for (source, target), route in routes_of_ranks(plan, case).items()
    }
