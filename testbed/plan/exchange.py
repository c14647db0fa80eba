"""What the replicas of a job's stages exchange: the one place that the model and the engine have it from."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.pipeline.algorithms import Members, exchange
from testbed.pipeline.collectives import Exchange
from testbed.plan import routes
from testbed.plan.plan import Job
from testbed.spec.workload import Workload

CHUNKS = 4
"""Into which a collective in two levels is cut by default: while one is between datacenters another can be inside."""


def exchange_of(workload: Workload, sites: Sequence[str]) -> Exchange:
    """What the members of a stage do, which are in these datacenters."""
    chosen = workload.data_parallel
    return exchange(chosen.algorithm, Members(tuple(sites), chosen.sharding == "zero-1", chosen.chunks or CHUNKS))


def exchange_at(job: Job, pipeline_rank: int) -> Exchange:
    """What the replicas of the stages of a pipeline rank do, which are where the plan has them."""
    sites = sites_of(job)
    first = job.mesh.first_rank
    return exchange_of(
        job.workload, [sites[job.mesh.rank(replica, pipeline_rank) - first] for replica in range(job.mesh.dp)]
    )


def sites_of(job: Job) -> tuple[str, ...]:
    """The datacenter of every rank of a job."""
    return tuple(map(routes.datacenter_of, job.nodes))
