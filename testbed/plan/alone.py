"""Each job of a case by itself too: behind the case, one for every job with the others away, on the same routes."""

from __future__ import annotations

from dataclasses import replace

from testbed.errors import BadInput
from testbed.plan.plan import Case, Plan


def require_several(plan: Plan) -> None:
    """Raises BadInput for a single job."""
    if len(plan.jobs) < 2:
        expected = "two workloads or more: one job is alone anyway"
        raise BadInput.of("--alone", "option", f"{len(plan.jobs)} job", expected)


def with_alone(plan: Plan) -> Plan:
    """The plan in which every case is followed by each of its jobs alone. Raises as `require_several`."""
    require_several(plan)
    return replace(plan, cases=tuple(derived for case in plan.cases for derived in (case, *_alone(plan, case))))


def _alone(plan: Plan, case: Case) -> list[Case]:
    return [
        replace(case, label=f"{case.label}, {job.name} alone", alone_of=case.label, alone=job.name) for job in plan.jobs
    ]
