"""What ranks send each other when they connect, at the start of a training and behind each failure."""

from __future__ import annotations

from itertools import pairwise

from testbed.plan.framing import WARMUP_ROUNDS
from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.routes import routes_of_ranks


def neighbours_of(plan: Plan, job: Job) -> tuple[tuple[int, int], ...]:
    """Pairs of a job's ranks, counted from 0, that exchange messages in any case, or while profiling."""
    ranks = job.mesh.ranks
    pairs = {(min(flow.source, flow.target), max(flow.source, flow.target)) for flow in plan.flows}
    mine = {(a - ranks.start, b - ranks.start) for a, b in pairs if a in ranks}
    return tuple(sorted(mine | set(pairwise(range(len(ranks))))))


def least_connecting_s(plan: Plan, case: Case, job: Job) -> float:
    """Seconds that all ranks of a job take at least to connect: payload of warm-up messages over the fullest link."""
    links, routes, first = planned(plan.network).everything, routes_of_ranks(plan, case), job.mesh.first_rank
    crossing = [0] * len(links)
    for a, b in neighbours_of(plan, job):
        for ends in ((first + a, first + b), (first + b, first + a)):
            for direction in routes.get(ends, ()):
                crossing[direction] += 1
    size_bits = 8.0 * WARMUP_ROUNDS * job.workload.message_bytes()
    return max((count * size_bits / link.rate_bps for count, link in zip(crossing, links, strict=True)), default=0.0)
