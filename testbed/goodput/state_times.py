"""What the model says of states that ranks send into each other's memory: of a checkpoint, and of what a failure took.

Nothing else is on the links then. Every rank begins a little after the one before it, so that no chance tells whose
state a shared link takes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from testbed.goodput.spans import ON_DISK, Keeping
from testbed.model.one_exchange import SentOnce, arrivals_s
from testbed.plan.costs import parts_on_wire, pipeline_routes, problem_of_case
from testbed.plan.plan import Case, Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.recovery import Failure
from testbed.plan.state_exchange import StateMessage, failed_ranks, restoring, saving, state_bytes


def exchange_s(plan: Plan, case: Case, messages: Sequence[StateMessage]) -> float:
    """Seconds from when the only job's ranks begin to send until all of these have come."""
    (job,) = plan.jobs
    messages = [message for message in messages if message.source != message.target]
    if not messages:
        return 0.0
    ranks = pipeline_routes(plan, RankRoutes(plan, case), tuple(job.mesh.ranks), cards=False)
    sent = [
        SentOnce(
            message.source,
            message.target,
            parts_on_wire(plan, job, message.payload_bytes),
            message.source * plan.host_costs.stagger_s,
        )
        for message in messages
    ]
    return max(arrivals_s(problem_of_case(plan, case), ranks, sent))


def keeping_of(plan: Plan, case: Case) -> Keeping:
    """How the only job of a plan whose workers fail keeps its state in a case, and what that takes. Raises BadInput."""
    (job,) = plan.jobs
    assert plan.recovery is not None

    def ranks_of(failure: Failure) -> frozenset[int]:
        return failed_ranks(job, failure)

    memory = None if plan.recovery.checkpoints is None else plan.recovery.checkpoints.memory
    if memory is None:
        return ON_DISK._replace(ranks_of=ranks_of)
    sizes = state_bytes(job, case, memory)

    @cache
    def again_s(lost: frozenset[int]) -> float | None:
        messages = restoring(job.mesh, sizes, lost)
        return None if messages is None else exchange_s(plan, case, messages)

    return Keeping(ranks_of, exchange_s(plan, case, saving(job.mesh, sizes)), again_s)
