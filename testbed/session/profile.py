"""Without pacing, what F, I and W take on this machine: measured in a run of its own, before any case."""

from __future__ import annotations

import statistics

from testbed.judge import iterations
from testbed.plan.plan import Plan
from testbed.plan.resolve import generate
from testbed.progress import Reporter
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import Pacing
from testbed.trace.tables import KINDS, concatenate
from testbed.train.job import Job

SCHEDULE = "zb-h1"
"""Splits the backward, so an unpaced run of it tells F, I and W apart."""

MEASURED_ITERATIONS = 3


def profile(plan: Plan, loop: Loop, reporter: Reporter) -> Pacing:
    """Medians per rank of an unpaced run of the first job. Raises RunFailed."""
    workload = plan.jobs[0].workload
    guess = Pacing(F="1 ms", I="1 ms", W="1 ms")  # only the order of actions matters here
    schedule = generate(plan, ScheduleChoice(schedule=SCHEDULE), guess).schedule
    job = Job(schedule, workload, None, workload.warmup + MEASURED_ITERATIONS)
    traces = []
    with reporter.step("profiling the unpaced computation", total=job.iterations) as step:
        deadline = deadlines.of_unknown_iteration()
        reporter.note(f"each iteration has to end within {deadline}")
        for (records,) in loop.run([job], deadline):
            traces.append(iterations.trace(records))
            step.advance()
    actions = concatenate(traces[workload.warmup :]).actions

    def median(kind: str, rank: int) -> str:
        code = [str(k) for k in KINDS].index(kind)
        rows = actions[(actions["rank"] == rank) & (actions["kind"] == code)]
        return f"{statistics.median(rows['end_s'] - rows['start_s']):.9f} s"

    ranks = range(plan.jobs[0].mesh.pp)
    return Pacing(**{kind: [median(kind, rank) for rank in ranks] for kind in ("F", "I", "W")})
