"""Which ranks of a job send each other what, whatever the routes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, permutations, product

from testbed.pipeline.placement import Placement, stage_to_rank
from testbed.plan.exchange import exchange_at
from testbed.plan.plan import Flow, Job, TrafficKind


def flows_of(job: Job, placements: Iterable[tuple[int, ...]]) -> tuple[Flow, ...]:
    """What the ranks of a job exchange under any of these placements; neighbours always (a profile's messages)."""
    found: dict[Flow, None] = {}
    mesh = job.mesh
    for stages in dict.fromkeys([*placements, stage_to_rank(Placement.UD, mesh.pp)]):
        for replica, tensor_rank in product(range(mesh.dp), range(mesh.tp)):
            ranks = mesh.pipeline(replica, tensor_rank)
            for a, b in pairwise(stages):
                if a != b:
                    found[Flow(ranks[a], ranks[b], TrafficKind.ACTIVATION)] = None
                    found[Flow(ranks[b], ranks[a], TrafficKind.GRADIENT)] = None
    if mesh.dp > 1:
        for rank, tensor_rank in product(range(mesh.pp), range(mesh.tp)):
            members, exchange = mesh.counterparts(rank, tensor_rank), exchange_at(job, rank)
            for step in (*exchange.gather, *exchange.reduction):
                found[Flow(members[step.source], members[step.target], TrafficKind.DATA_PARALLEL)] = None
    for replica, rank in product(range(mesh.dp), range(mesh.pp)):
        for source, target in permutations(mesh.tensor_ranks(replica, rank), 2):
            found[Flow(source, target, TrafficKind.TENSOR_PARALLEL)] = None
    return tuple(found)
