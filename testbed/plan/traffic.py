"""How many bytes the messages of an iteration should put on every direction: what counters are held against."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from testbed.plan import routes
from testbed.plan.framing import ack_bytes, super_packet_bytes, wire_bytes
from testbed.plan.plan import Case, Plan, Route


class Planned(NamedTuple):
    """Of one direction in one iteration."""

    wire_bytes: float
    """Messages with headers, what gloo adds to them, and acknowledgements of those that go the other way."""
    messages: int
    """That cross it, and that are acknowledged across it."""


def planned_traffic(plan: Plan, case: Case) -> tuple[Planned, ...]:
    """Per direction of the network; pipelines' messages only, since nothing else is trained yet."""
    bytes_, messages = [0.0] * len(plan.network.directions), [0] * len(plan.network.directions)
    routed = {(flow.source, flow.target): route for flow, route in zip(plan.flows, case.routes, strict=True)}
    nodes = routes.nodes_of_ranks(plan)

    def add(route: Route, size: float) -> None:
        for index in route:
            bytes_[index] += size
            messages[index] += job.workload.microbatches

    for job, chosen in zip(plan.jobs, case.jobs, strict=True):
        size = wire_bytes(job.workload.message_bytes()) + plan.host_costs.gloo_bytes
        for replica in range(job.mesh.dp):
            ranks = job.mesh.pipeline(replica)
            for a, b in pairwise(chosen.stage_to_rank):
                for source, target in ((ranks[a], ranks[b]), (ranks[b], ranks[a])):
                    if source == target:
                        continue
                    gso = plan.framing.gso_bytes[routes.datacenter_of(nodes[source])]
                    acknowledged = math.ceil(size / super_packet_bytes(gso)) * ack_bytes(gso)
                    add(routed[source, target], job.workload.microbatches * size)
                    add(routed[target, source], job.workload.microbatches * acknowledged)
    return tuple(Planned(*one) for one in zip(bytes_, messages, strict=True))
