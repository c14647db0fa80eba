"""Jobs that run freely: each begins its next iteration when its own is over, whatever the others do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.errors import BadInput
from testbed.plan.plan import Plan

GAP_S = 20e-3
"""From the end of a job's iteration on its last rank to the beginning of its next one on all, in model and lab: time
for the optimizer's step, for the word that all are done, and for posting receives."""


def require_free(plan: Plan, asked: Sequence[str] = ()) -> None:
    """Raises BadInput for a plan with something that goes by rounds of all jobs together, or that is `asked` for."""
    beside = {
        "events": bool(plan.events),
        "--adapt": plan.adaptation is not None,
        "workers that fail": plan.recovery is not None,
        "--alone": any(case.alone is not None for case in plan.cases),
        "unpaced jobs": any(job.workload.pacing is None for job in plan.jobs),
    }
    for what in (*asked, *(name for name, there in beside.items() if there)):
        raise BadInput.of("--rounds", "option", "free", f"together, beside {what}: these go by rounds of all jobs")
