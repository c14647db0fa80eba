"""The control of a case: the same training once more in the same lab, right behind it, with links that are not shaped.

Containers, ranks, schedule and routes are those of the case; only delay, jitter, loss and rate are gone. So what moves
the control's time from one run to the next is the machine, or the computation, and never the network. No verdict is
passed on it: the link gate was for the links as they are asked for, and a disturbed control says what it has to say.
"""

from __future__ import annotations

from testbed.lab import host_settings
from testbed.lab.lab import Lab
from testbed.plan.plan import Plan
from testbed.results.control_times import ControlTimes
from testbed.session.loop import start_margin_s
from testbed.session.rounds import WitnessedRounds, task_of
from testbed.session.running import Running
from testbed.session.trained import TrainedCase
from testbed.units import show_time


def measure(running: Running, lab: Lab, plan: Plan, done: TrainedCase) -> list[ControlTimes]:
    """Per job of a case that has just been trained, what its iterations take without shaping. Raises RunFailed."""
    rounds = done.phase.rounds
    tasks = {job.number: task_of(job.job, job.load, len(rounds)) for job in done.jobs}
    times_s: dict[int, list[float]] = {job.number: [] for job in done.jobs}
    title = f"training {done.case.label} without shaping"
    with (
        running.reporter.step(title, total=len(rounds)) as step,
        host_settings.real_time(running.real_time),
        lab.unshaped(),
    ):
        margin_s = start_margin_s(plan, done.case)  # of the shaped network: long enough
        of_all = running.loop, tasks, done.deadline, running.witness, lambda number: margin_s
        for number, ended in enumerate(WitnessedRounds(*of_all), rounds.start):
            found = {job: ended.row(job).makespan_s for job in times_s}
            step.advance(f"{title}: {', '.join(map(show_time, found.values()))}")
            if number in done.phase.measured:
                for job, time_s in found.items():
                    times_s[job].append(time_s)
    several = len(plan.jobs) > 1
    return [
        ControlTimes(done.case.label, job.job.name if several else "", tuple(times_s[job.number])) for job in done.jobs
    ]
