"""How many bytes the messages of an iteration should put on every direction: what counters are held against."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from testbed.plan import routes
from testbed.plan.framing import ACK_BYTES, super_packet_bytes, wire_bytes
from testbed.plan.plan import Case, Plan, Route


class Planned(NamedTuple):
    """Of one direction in one iteration."""

    wire_bytes: float
    """Messages with headers, what gloo adds to them and its notices of receives, and acknowledgements of all these."""
    messages: int
    """That cross it, and that are acknowledged across it."""


def planned_traffic(plan: Plan, case: Case) -> tuple[Planned, ...]:
    """Per direction of the network, then per network card; pipelines' messages only: nothing else is trained yet."""
    count = len(routes.all_directions(plan.network))
    bytes_, messages = [0.0] * count, [0] * count
    routed = {(flow.source, flow.target): route for flow, route in zip(plan.flows, case.routes, strict=True)}
    nodes, cards = routes.nodes_of_ranks(plan), routes.card_routes(plan.network)

    def add(source: int, target: int, size: float) -> None:
        way: Route = cards.get(nodes[source], ()) + routed[source, target]
        for index in way:
            bytes_[index] += size
            messages[index] += job.workload.microbatches

    for job, chosen in zip(plan.jobs, case.jobs, strict=True):
        size = wire_bytes(job.workload.message_bytes()) + plan.host_costs.gloo_bytes
        notice, n = plan.host_costs.notice_bytes, job.workload.microbatches
        for replica in range(job.mesh.dp):
            ranks = job.mesh.pipeline(replica)
            for a, b in pairwise(chosen.stage_to_rank):
                for source, target in ((ranks[a], ranks[b]), (ranks[b], ranks[a])):
                    if source == target:
                        continue
                    gso = plan.framing.gso_bytes[routes.datacenter_of(nodes[source])]
                    packets = 1 + math.ceil((size - notice) / super_packet_bytes(gso))
                    add(source, target, n * (size + ACK_BYTES))
                    add(target, source, n * (packets * ACK_BYTES + notice))
    return tuple(Planned(*one) for one in zip(bytes_, messages, strict=True))
