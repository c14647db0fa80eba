"""A job as it is while some of its replicas are away: a plan of its own, whose ranks count anew from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.plan.flows import flows_of
from testbed.plan.network_state import network_at
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.rank_routes import RankRoutes


def ranks_of(job: Job, replicas: Sequence[int]) -> tuple[int, ...]:
    """Of each rank of the job with these replicas alone, which one it is of the whole job, counted from 0."""
    mesh = job.mesh
    return tuple(rank - mesh.first_rank for replica in replicas for rank in mesh.ranks_of(replica))


def job_of(job: Job, replicas: Sequence[int]) -> Job:
    """A job with these of its replicas alone, and so many samples fewer in a batch."""
    workload, count = job.workload, len(replicas)
    changed: dict[str, object] = {"parallelism": workload.parallelism.model_copy(update={"data": count})}
    pacing = workload.pacing
    if pacing is not None and pacing.factors and isinstance(pacing.factors[0], list):
        factors = [pacing.factors[replica] for replica in replicas]
        changed["pacing"] = pacing.model_copy(update={"factors": factors})
    nodes = tuple(job.nodes[rank] for rank in ranks_of(job, replicas))
    return replace(job, mesh=replace(job.mesh, dp=count), nodes=nodes, workload=workload.model_copy(update=changed))


def with_replicas(plan: Plan, case: Case, replicas: Sequence[int]) -> tuple[Plan, Case]:
    """The plan of a job with these of its replicas alone, in one case; the plan as it is where they are all.

    Flows between ranks that exchanged something before keep their routes, others have default ones, as in a lab.
    """
    (job,) = plan.jobs
    if len(replicas) == job.mesh.dp:
        return plan, case
    fewer, ranks, route_of = job_of(job, replicas), ranks_of(job, replicas), RankRoutes(plan, case)
    flows, first, taken = tuple(flows_of(fewer, [case.jobs[0].stage_to_rank])), job.mesh.first_rank, []
    known = {(flow.source, flow.target): route for flow, route in zip(plan.flows, case.routes, strict=True)}
    default_route = network_at(plan, case).default_route
    for flow in flows:
        ends = [first + ranks[rank - first] for rank in (flow.source, flow.target)]
        nodes = [route_of.node_of[rank] for rank in ends]
        taken.append(known[ends[0], ends[1]] if (ends[0], ends[1]) in known else default_route(nodes[0], nodes[1]))
    left = replace(case, routes=tuple(taken))
    return replace(plan, jobs=(fewer,), flows=flows, cases=(left,), recovery=None), left
