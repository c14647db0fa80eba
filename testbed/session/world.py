"""Where the ranks of a plan live, and how they meet: the worlds that its jobs' workers join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from testbed.lab.lab import Lab
from testbed.plan.connecting import neighbours_of
from testbed.plan.plan import Plan
from testbed.session.deadlines import of_peers
from testbed.session.pinning import Pinning
from testbed.train.protocol import WorkerPlace, WorldSpec

UNPINNED = Pinning()


def worlds_of(
    plan: Plan, lab: Lab, scratch: Path, logs: Path, pinned: Pinning = UNPINNED, *, witness: bool = True
) -> list[WorldSpec]:
    """The process group of every job in a lab.

    All containers see `scratch`; workers write what they say to files in `logs`, and tell what the machine did to them
    if they are to be a `witness`.
    """
    logs = logs.absolute()
    logs.mkdir(exist_ok=True)
    return [
        replace(
            world_of(
                plan,
                number,
                tuple(
                    WorkerPlace(lab.containers[node].pid, lab.interface(node), lab.groups.joined_by(node))
                    for node in job.nodes
                ),
                store=f"file://{scratch}/store{number}",
                logs=str(logs),
            ),
            # unpaced ranks compute without a pause: in turns of 100 ms they keep each other's gloo threads waiting
            real_time=lab.real_time_workers and job.workload.pacing is not None,
            # to connect takes 0.1 s longer so, which nobody times but restarts behind failures
            seldom_looks=plan.clock.name == "virtual" and plan.recovery is None,
            cores=tuple(pinned.cores[rank] for rank in job.mesh.ranks) if pinned.cores else (),
            witness=witness,
        )
        for number, job in enumerate(plan.jobs)
    ]


def world_of(plan: Plan, number: int, places: Sequence[WorkerPlace], *, store: str, logs: str) -> WorldSpec:
    """The process group of the job of this number, its ranks at these places; `store` and `logs` as in WorldSpec."""
    job = plan.jobs[number]
    return WorldSpec(
        places=tuple(places),
        store=store,
        timeout_s=of_peers(plan),
        warmup_bytes=job.workload.message_bytes(),
        neighbours=neighbours_of(plan, job),
        logs=logs,
        first_rank=job.mesh.first_rank,
        job=job.name if len(plan.jobs) > 1 else "",
        streams=job.workload.streams,
    )
