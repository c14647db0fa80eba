"""How many bytes the messages of an iteration should put on every direction: what counters are held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations, product
from typing import NamedTuple

from testbed.plan import routes
from testbed.plan.exchange import exchange_at
from testbed.plan.framing import ACK_BYTES, super_packet_bytes, wire_bytes
from testbed.plan.plan import Case, Job, Plan, Route


class Planned(NamedTuple):
    """Of one direction in one iteration."""

    wire_bytes: float
    """Messages with headers, what gloo adds to them and its notices of receives, and acknowledgements of all these."""
    messages: int
    """That cross it, and that are acknowledged across it."""


def planned_traffic(plan: Plan, case: Case) -> tuple[Planned, ...]:
    """Per direction of the network, then per network card."""
    count = len(routes.all_directions(plan.network))
    bytes_, messages = [0.0] * count, [0] * count
    ways: dict[tuple[int, int], Route] = {}
    for source, target, size, number in _sent(plan, case):
        if (source, target) not in ways:
            ways[source, target] = _way(plan, case, source, target)
        for index in ways[source, target]:
            bytes_[index] += number * size
            messages[index] += number
    return tuple(Planned(*one) for one in zip(bytes_, messages, strict=True))


def _way(plan: Plan, case: Case, source: int, target: int) -> Route:
    """The directions from one rank to another, the network card of the first included."""
    nodes = routes.nodes_of_ranks(plan)
    sites = routes.datacenter_of(nodes[source]), routes.datacenter_of(nodes[target])
    found = {(flow.source, flow.target): route for flow, route in zip(plan.flows, case.routes, strict=True)}
    default = routes.by_datacenters(plan.network).get(sites, ())
    return routes.card_routes(plan.network).get(nodes[source], ()) + found.get((source, target), default)


def _sent(plan: Plan, case: Case) -> Iterator[tuple[int, int, float, int]]:
    """(source rank, target rank, wire bytes, how often): messages, and what is sent back for each of them."""
    notice, nodes = plan.host_costs.notice_bytes, routes.nodes_of_ranks(plan)
    for source, target, payload, number in _messages(plan, case):
        size = wire_bytes(payload) + plan.host_costs.gloo_bytes
        gso = plan.framing.gso_bytes[routes.datacenter_of(nodes[source])]
        packets = 1 + math.ceil((size - notice) / super_packet_bytes(gso))
        yield source, target, size + ACK_BYTES, number
        yield target, source, packets * ACK_BYTES + notice, number


def _messages(plan: Plan, case: Case) -> Iterator[tuple[int, int, int, int]]:
    """(source rank, target rank, payload bytes, how often) of all that ranks send each other in an iteration."""
    for job, chosen in zip(plan.jobs, case.jobs, strict=True):
        mesh, workload, stages = job.mesh, job.workload, chosen.stage_to_rank
        for replica, tensor_rank in product(range(mesh.dp), range(mesh.tp)):
            ranks = mesh.pipeline(replica, tensor_rank)
            for a, b in pairwise(stages):
                if a != b:
                    yield ranks[a], ranks[b], workload.message_bytes(), workload.microbatches
                    yield ranks[b], ranks[a], workload.message_bytes(), workload.microbatches
        for rank in stages if mesh.dp > 1 else ():
            exchange = exchange_at(job, rank)
            cell = workload.cell_bytes(len(stages), exchange.n_cells)
            for step, tensor_rank in product((*exchange.gather, *exchange.reduction), range(mesh.tp)):
                members = mesh.counterparts(rank, tensor_rank)
                yield members[step.source], members[step.target], step.n_cells * cell, 1
        for replica, rank in product(range(mesh.dp), range(mesh.pp)):
            for source, target in permutations(mesh.tensor_ranks(replica, rank), 2):
                for payload, number in _between_tensor_ranks(job, stages, rank):
                    yield source, target, payload, number


def _between_tensor_ranks(job: Job, stages: Sequence[int], rank: int) -> Iterator[tuple[int, int]]:
    """(payload bytes, how often) of what each tensor rank of a pipeline rank sends every other one in an iteration.

    Summands of every reduction, in forwards and backwards, and its part of every boundary tensor that has come in.
    """
    workload, whole = job.workload, job.workload.tensor_bytes()
    mine = [stage for stage, holder in enumerate(stages) if holder == rank]
    passes = 3 if workload.recompute else 2
    for stage in mine:
        yield whole, passes * workload.microbatches * workload.model.forward_reductions(stage, len(stages))
    taken = sum((a == rank) + (b == rank) for a, b in pairwise(stages) if a != b)
    yield INSTANTS_BYTES + math.ceil(whole / job.mesh.tp), taken * workload.microbatches
    if job.mesh.dp > 1:
        yield INSTANTS_BYTES, sum(stage == 0 or stages[stage - 1] == rank for stage in mine)


INSTANTS_BYTES = 24
"""With which tensor ranks agree on when an action begins (train/peers.py)."""
