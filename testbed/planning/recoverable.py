"""Which plans can have workers that fail, and are replaced."""

from __future__ import annotations

from testbed.errors import require
from testbed.plan.plan import Plan
from testbed.plan.recovery import LATEST_FAILURE_S, MOST_FAILURES, MOST_SLOT_S


def require_recoverable(plan: Plan, source: str, field: str) -> None:
    """Raises BadInput, as of this field, where a plan's recovery is not one that a lab can play."""
    if plan.recovery is None:
        return
    checkpoints, failures = plan.recovery.checkpoints, plan.recovery.failures
    require(len(plan.jobs) == 1, source, field, f"{len(plan.jobs)} jobs", "one job: failures are of its workers")
    job = plan.jobs[0]
    require(
        job.workload.pacing is not None, source, field, "pacing: none", "seconds for F, I and W to place failures by"
    )
    beside = "--adapt" if plan.adaptation else next((event.option for event in plan.events), None)
    require(beside is None, source, field, beside, "no events and no controller beside failures")
    require(checkpoints.every >= 1, source, field, checkpoints.every, "a checkpoint every iteration, or fewer")
    for seconds in (checkpoints.save_s, checkpoints.restart_s):
        require(0 <= seconds <= MOST_SLOT_S, source, field, seconds, f"0 to {MOST_SLOT_S:g} s")
    require(len(failures) <= MOST_FAILURES, source, field, len(failures), f"at most {MOST_FAILURES} failures")
    times_s = [failure.at_s for failure in failures]
    require(times_s == sorted(times_s), source, field, times_s, "failures in order of time")
    for failure in failures:
        require(0 <= failure.rank < job.mesh.size, source, field, failure.rank, f"a rank below {job.mesh.size}")
        require(0 <= failure.at_s <= LATEST_FAILURE_S, source, field, failure.at_s, f"0 to {LATEST_FAILURE_S:g} s")
