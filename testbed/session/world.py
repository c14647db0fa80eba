"""Where the ranks of a plan live, and how they meet: the world that its workers join."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from testbed.lab.network import Lab
from testbed.plan.plan import Plan
from testbed.session.pinning import Pinning
from testbed.train.protocol import Place, WorldSpec

PEER_TIMEOUT_S = 600.0
"""Of gloo's own waits: longer than any deadline of the loop, which knows better what is the matter."""

UNPINNED = Pinning()


def world_of(
    plan: Plan, lab: Lab, scratch: Path, logs: Path, pinned: Pinning = UNPINNED, *, witness: bool = True
) -> WorldSpec:
    """The process group of a plan's first job in a lab.

    All containers see `scratch`; workers write what they say to files in `logs`, and tell what the machine did to them
    if they are to be a `witness`.
    """
    job, logs = plan.jobs[0], logs.absolute()
    logs.mkdir(exist_ok=True)
    return WorldSpec(
        places=tuple(Place(lab.containers[node].pid, lab.interface(node)) for node in job.nodes),
        store=str(scratch / "store"),
        timeout_s=PEER_TIMEOUT_S,
        warmup_bytes=job.workload.message_bytes(),
        neighbours=_neighbours(plan),
        # unpaced ranks compute without a pause: in turns of 100 ms they would keep each other's gloo threads waiting
        real_time=lab.real_time_workers and job.workload.pacing is not None,
        logs=str(logs),
        cores=pinned.cores,
        witness=witness,
    )


def _neighbours(plan: Plan) -> tuple[tuple[int, int], ...]:
    """Pairs of ranks that exchange messages in any case, or while profiling."""
    pairs = {(min(flow.source, flow.target), max(flow.source, flow.target)) for flow in plan.flows}
    return tuple(sorted(pairs | set(pairwise(plan.jobs[0].mesh.ranks))))
