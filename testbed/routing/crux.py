"""`crux`: routes job by job, the one with the most work per second of transfer first.

GPU intensity is that of Cao et al., "Crux: GPU-Efficient Communication Scheduling for Deep Learning Training"
(SIGCOMM'24), which we know in part:

    I_j = W_j / max over links e of M_je / B_e

with the work W_j of an iteration, the bytes M_je that it sends over a link and the link's rate B_e. As in the paper the
job of the highest intensity chooses its paths first, and the least congested ones. Ours: work is the seconds that
accelerators compute in an iteration, of all ranks, since all of a lab count alike; M_je is on the routes that the case
had; within a job the flow with the most bytes is first. The paper also gives packets of intense jobs one of eight
priorities in switches: links here serve first come, first served, so that half of it is not here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from testbed.model.network import Floats
from testbed.plan.events import at_work
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import predict_together
from testbed.routing.apply import Demands, demands, on_routes, taken
from testbed.routing.fairness import bytes_per_direction
from testbed.routing.greedy_routes import in_order
from testbed.routing.planner import PlannedCases, Planner, PlannerInput


def crux(task: PlannerInput) -> PlannedCases:
    """Every case on routes that its jobs choose in the order of their intensity."""
    cases, remarks = [], []
    for case in task.plan.cases:
        plan = replace(task.plan, cases=(case,))
        wanted = demands(plan, case, task.reach)
        found = intensities(plan, case, wanted)
        place = np.argsort(np.argsort([-found.get(job, 0.0) for job in range(len(plan.jobs))], kind="stable"))
        problem = wanted.problem
        order = np.lexsort((np.arange(problem.n_flows), -problem.wire_bytes, place[problem.job]))
        cases.append(on_routes(plan, case, wanted, in_order(problem, order).tolist()))
        ranked = ", ".join(
            f"{plan.jobs[job].name} {found[job]:.4g}" for job in sorted(found, key=lambda job: (-found[job], job))
        )
        remarks.append(f"{case.label}: seconds of computing per second of transfer: {ranked or 'nothing is sent'}")
    return PlannedCases(task.plan.flows, tuple(cases), tuple(remarks))


PLANNER = Planner(crux)


def intensities(plan: Plan, case: Case, wanted: Demands) -> dict[int, float]:
    """By number of a job at work that has flows to route, its intensity: seconds computed over seconds of transfer on
    the direction that it occupies longest. Raises BadInput for a job without pacing.
    """
    actions = predict_together(plan, case).actions
    computed = actions["computed_s"] - actions["start_s"]
    problem, choice = wanted.problem, taken(plan, case, wanted)
    found = {}
    for job in at_work(plan, case):
        mine: Floats = np.where(problem.job == job, problem.wire_bytes, 0.0)
        busy_s = 8 * bytes_per_direction(replace(problem, wire_bytes=mine), choice) / problem.rate_bps
        transfer_s = float(busy_s.max(initial=0.0))
        if transfer_s > 0:
            found[job] = float(computed[actions["job"] == job].sum()) / transfer_s
    return found
