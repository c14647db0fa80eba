"""Schedules under slots that vary: each meets the same draws, so that what they differ by is not chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.errors import BadInput
from testbed.model.lower import Load
from testbed.model.repeated import RepeatedIterations
from testbed.plan.drawn_slots import slots_of
from testbed.plan.plan import Job
from testbed.spec.workload import Workload

DRAWS = 200
"""By which `best` is chosen where it is to be robust: a 95th percentile is bounded by 59 at least."""


AS_THEY_ARE = "`testbed predict` has each as it is"


class NoisySchedule(NamedTuple):
    """What one schedule takes over all draws."""

    label: str
    median_s: float
    p95_s: float
    worst_regret_s: float
    """The most that it takes longer in any draw than the schedule that is fastest in that draw ..."""
    worst_regret: float
    """... and the largest share of that one's time."""


def require_draws(job: Job, where: tuple[str, str], value: object) -> None:
    """Raises BadInput where a job's iterations do not differ; `where` are source and field that ask for it."""
    pacing = job.workload.pacing
    if pacing is None or not pacing.varies:
        expected = f"pacing of {job.workload.name} that is drawn anew ({{median: 20 ms, p95: 24 ms}})"
        raise BadInput.of(*where, value, expected)


def of_slots(workloads: Iterable[Workload], elsewhere: str = AS_THEY_ARE, drawn: str = "") -> list[str]:
    """What is to be known of times that go by one slot for all actions of a kind on a rank; [] where all are so.

    What has the others says `elsewhere`, of slots that are drawn anew `drawn`.
    """
    lines = []
    for name, pacing in ((one.name, one.pacing) for one in workloads):
        if pacing is not None and pacing.spreads:
            where = drawn if drawn and pacing.varies else elsewhere
            lines.append(f"slots of {name} vary: these are times with their medians, {where}")
        if pacing is not None and pacing.by_replica:
            lines.append(f"replicas of {name} have factors of their own: these are times with the largest, {elsewhere}")
    return lines


def noisy_times_s(job: Job, loads: Mapping[str, Load], draws: int) -> dict[str, NDArray[np.float64]]:
    """By label, what each load of a job alone takes in every draw: those of its first measured iterations."""
    first = job.workload.warmup
    found = {}
    for label, load in loads.items():
        repeated, stages = RepeatedIterations([load]), load.schedule.stage_to_rank
        slots = (slots_of(job.workload, stages, first + draw) for draw in range(draws))
        found[label] = np.array([repeated.times_s([slots_s])[0] for slots_s in slots])
    return found


def noisy_schedules(job: Job, loads: Mapping[str, Load], draws: int) -> list[NoisySchedule]:
    """Each of a job's schedules over so many draws, the one with the least 95th percentile first."""
    times = noisy_times_s(job, loads, draws)
    least = np.min(list(times.values()), axis=0)
    found = [
        NoisySchedule(
            label,
            float(np.median(own)),
            float(np.percentile(own, 95)),
            float((own - least).max()),
            float((own / least - 1).max()),
        )
        for label, own in times.items()
    ]
    return sorted(found, key=lambda schedule: schedule.p95_s)
