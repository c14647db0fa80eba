"""Iterations that differ on purpose: what the model says of each, where slots are drawn (plan/drawn_slots.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.model.lower import Load
from testbed.model.repeated import RepeatedIterations, Slots
from testbed.model.simulate import simulate_jobs
from testbed.plan.drawn_slots import SlowerRank, slots_of
from testbed.plan.events import Phase, at_work, phases, trainings
from testbed.plan.microbatches import job_in
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.timeline import RankSlower
from testbed.trace.tables import Trace, concatenate

Floats = NDArray[np.float64]


def is_uniform(job: Job) -> bool:
    """Whether a job's actions take what its scheduling problem says, on every replica and in every iteration."""
    pacing = job.workload.pacing
    return pacing is None or pacing.uniform


def varies(plan: Plan, case: Case) -> bool:
    """Whether iterations of a case differ on purpose."""
    found = (plan.jobs[number].workload.pacing for number in at_work(plan, case))
    return any(pacing is not None and pacing.varies for pacing in found)


def slower_ranks(plan: Plan, case: Case, number: int) -> tuple[SlowerRank, ...]:
    """The ranks of a job, by its number, that become slower in a case's training; a job by itself trains without."""
    job, found = plan.jobs[number], list[SlowerRank]()
    for event in plan.events if case.alone is None else ():
        if isinstance(event, RankSlower) and event.name == job.name:
            place, warmup = job.mesh.coordinates(job.mesh.first_rank + event.rank), job.workload.warmup
            end = None if event.until is None else warmup + event.until
            first = warmup + event.at.iteration
            found.append(SlowerRank(place.replica, place.pipeline_rank, event.factor, first, end))
    return tuple(found)


class RankChange(NamedTuple):
    """A rank that becomes slower, or no longer is."""

    round: int
    """Of a training, warm-up counted: the first in which it is so."""
    said: str
    """The event as somebody wrote it; of one that is over, that as well."""


def rank_changes(plan: Plan, case: Case) -> list[RankChange]:
    """What happens to ranks in a case's training, in order of time; a job by itself trains without."""
    names, warmup = [plan.jobs[number].name for number in at_work(plan, case)], plan.jobs[0].workload.warmup
    found = []
    for event in plan.events if case.alone is None else ():
        if isinstance(event, RankSlower) and event.name in names:
            found.append(RankChange(warmup + event.at.iteration, event.said))
            if event.until is not None and event.until < plan.jobs[0].workload.iterations:
                found.append(RankChange(warmup + event.until, f"{event.said}: over"))
    return sorted(found, key=lambda change: change.round)


def phase_of(plan: Plan, case: Case) -> Phase:
    """The rounds of a case; of one that is none of the plan's, those of a training by itself."""
    for cases in trainings(plan.cases):
        for known, phase in zip(cases, phases(plan, cases), strict=True):
            if known.label == case.label:
                return phase
    workload = plan.jobs[0].workload
    return Phase(range(workload.warmup + workload.iterations), workload.warmup)


def simulate_rounds(plan: Plan, case: Case, loads: Sequence[Load], *, warmup: bool = True) -> Trace:
    """The predicted trace of a case's rounds, with or without those that warm up; jobs and ranks are numbered as
    `loads` have them. One iteration that stands for all where they do not differ.
    """
    if all(is_uniform(plan.jobs[number]) for number in at_work(plan, case)):
        return simulate_jobs(loads)
    repeated, parts = RepeatedIterations(loads), []
    for number in _numbers(plan, case, warmup=warmup):
        trace = repeated.trace(slots_in(plan, case, loads, number))
        trace.actions["iteration"] = trace.messages["iteration"] = number
        parts.append(trace)
    return concatenate(parts)


def times_of_rounds(plan: Plan, case: Case, loads: Sequence[Load]) -> Floats:
    """What every iteration takes that counts: (iterations, jobs at work), in seconds from a job's start."""
    repeated = RepeatedIterations(loads)
    numbers = _numbers(plan, case, warmup=False)
    return np.array([repeated.times_s(slots_in(plan, case, loads, number)) for number in numbers])


def typical_loads(plan: Plan, case: Case, loads: Sequence[Load]) -> list[Load]:
    """The same with the slots of the iteration whose time is nearest to the median; of several jobs, of their sum."""
    if all(is_uniform(plan.jobs[number]) for number in at_work(plan, case)):
        return list(loads)
    sums = times_of_rounds(plan, case, loads).sum(axis=1)
    nearest = int(np.argmin(np.abs(sums - np.median(sums))))
    slots = slots_in(plan, case, loads, _numbers(plan, case, warmup=False)[nearest])
    return [load._replace(slots_s=slots_s) for load, slots_s in zip(loads, slots, strict=True)]


def slots_in(plan: Plan, case: Case, loads: Sequence[Load], iteration: int) -> Slots:
    """Per job at work, what its actions take in a round of the training."""
    found: list[Floats | None] = []
    for number, load in zip(at_work(plan, case), loads, strict=True):
        job, slower = job_in(plan.jobs[number], case.jobs[number]), slower_ranks(plan, case, number)
        stages = load.schedule.stage_to_rank
        usual = is_uniform(job) and not any(one.applies(iteration) for one in slower)
        found.append(None if usual else slots_of(job.workload, stages, iteration, slower))
    return found


def _numbers(plan: Plan, case: Case, *, warmup: bool) -> range:
    """The iterations that differ: those of the case, or one that stands for all."""
    phase = phase_of(plan, case)
    if not varies(plan, case):
        return range(1)
    return phase.rounds if warmup else phase.measured
