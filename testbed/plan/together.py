"""What the model says of the jobs of a case: each alone, and all of them on the links that they share."""

from __future__ import annotations

from typing import NamedTuple

from testbed.errors import BadInput
from testbed.model.lower import Load
from testbed.model.simulate import simulate_jobs
from testbed.pipeline.ir import Schedule
from testbed.plan import costs
from testbed.plan.plan import Case, Job, Plan
from testbed.trace.tables import Trace


class JobPrediction(NamedTuple):
    """One job in one case; seconds from its own start."""

    job: Job
    schedule: Schedule
    alone_s: float
    """As if no other job were there."""
    together_s: float
    """With an iteration of all jobs at once, from one common start."""
    bubble_alone: float
    bubble_together: float


def predict_together(plan: Plan, case: Case) -> Trace:
    """The trace of one iteration of every job of a case, on the case's routes.

    Raises BadInput for a job whose times only a run can tell.
    """
    loads = []
    for number, job in enumerate(plan.jobs):
        schedule = _schedule(plan, case, number)
        problem = costs.timed_problem(plan, case, schedule, job=number)
        loads.append(Load(problem, schedule, job.start_s, job.workload.receives))
    return simulate_jobs(loads)


def predict_jobs(plan: Plan, case: Case) -> list[JobPrediction]:
    """Every job of a case, alone and together. Raises as `predict_together`."""
    together = predict_together(plan, case)
    found = []
    for number, job in enumerate(plan.jobs):
        schedule, beside = _schedule(plan, case, number), _of_job(together, number, job)
        alone = costs.predict_case(plan, case, schedule, job=number) if len(plan.jobs) > 1 else beside
        alone_s, together_s = float(alone.makespans()[0]), float(beside.makespans()[0]) - job.start_s
        bubbles = float(alone.bubble_ratios()[0]), _bubble(beside, together_s)
        found.append(JobPrediction(job, schedule, alone_s, together_s, *bubbles))
    return found


def _schedule(plan: Plan, case: Case, number: int) -> Schedule:
    schedule = costs.schedule_of(plan, case, job=number)
    if schedule is None:
        expected = f"seconds for F, I and W: without them only a run can make {case.label}"
        raise BadInput.of(plan.jobs[number].workload.name, "pacing", "none", expected)
    return schedule


def _of_job(trace: Trace, number: int, job: Job) -> Trace:
    actions, messages = (table[table["job"] == number] for table in (trace.actions, trace.messages))
    return Trace(actions, messages, job.mesh.size)


def _bubble(trace: Trace, seconds: float) -> float:
    """Idle share of a job's ranks from its own start on."""
    busy = float((trace.actions["end_s"] - trace.actions["start_s"]).sum())
    return 1.0 - busy / (trace.n_ranks * seconds)
