"""Slots that are short beside the wait that a paced rank does not notice: such a pipeline is no ideal one."""

from __future__ import annotations

from dataclasses import replace

from testbed.plan.plan import Plan
from testbed.planning.prediction import predict_together
from testbed.units import show_change, show_time

_SHORT = 25
"""Waits that go unnoticed which a slot has at least where they are no matter."""
_WORTH_A_WORD = 1e-3
"""Of an iteration."""


def of_short_slots(plan: Plan) -> list[str]:
    """A line about schedules that would take another time, by more than a thousandth, if every wait counted; [] where
    none would. Lab and model agree on which waits do not (plan/host_costs.py), so that no measured error tells."""
    wait_s = plan.host_costs.unnoticed_wait_s
    paced = [(job, job.workload.pacing) for job in plan.jobs if job.workload.pacing is not None]
    slots_s = [
        pacing.of(kind, rank) * pacing.factor(replica, rank)
        for job, pacing in paced
        for kind in ("F", "I", "W")
        for rank in range(job.mesh.pp)
        for replica in range(job.mesh.dp)
    ]
    if len(paced) < len(plan.jobs) or min(slots_s) >= _SHORT * wait_s:
        return []
    ideal, otherwise = replace(plan, host_costs=replace(plan.host_costs, unnoticed_wait_s=0.0)), {}
    for case in plan.cases:
        if all(chosen.rows is not None for chosen in case.jobs):
            now_s, ideal_s = (float(predict_together(one, case).makespans()[0]) for one in (plan, ideal))
            if abs(ideal_s / now_s - 1) > _WORTH_A_WORD:
                otherwise[case.label] = ideal_s / now_s - 1
    if not otherwise:
        return []
    worst = max(otherwise, key=lambda label: abs(otherwise[label]))
    several = f" and {len(otherwise) - 1} more less so" if len(otherwise) > 1 else ""
    slot, wait = show_time(min(slots_s)), show_time(wait_s)
    return [
        f"slots of {slot} are short beside the {wait} that a rank waits unnoticed, in lab and model: if every wait "
        f"counted, {worst} would take {show_change(otherwise[worst], 1)}{several}"
    ]
