"""A plan whose job adapts while a lab trains it."""

from __future__ import annotations

from dataclasses import replace

from testbed.adaptation.adaptable_job import adaptable_job
from testbed.adaptation.controller import choose
from testbed.adaptation.jobs_in_rounds import best_starts_of, jobs_in_rounds
from testbed.adaptation.may_change import NOTHING, VARY, MayChange
from testbed.errors import BadInput
from testbed.plan.events import starts_of
from testbed.plan.plan import Adaptation, Plan

OPTION = "--adapt"
SWAP_S = 20e-3
"""What a controller takes a swap to cost: buffers of another order are made, and receives posted anew."""

SHIFT_S = 1e-3
"""The same of other starts, for which nothing is made and nothing sent: they are told as iterations begin."""


def with_adaptation(plan: Plan, controller: str, may: MayChange = NOTHING, option: str = OPTION) -> Plan:
    """The plan whose first case is trained, and goes on with the schedules of the others, and with what else it `may`
    change, when the controller says so. Several jobs begin when that is best, and later when that is.

    Raises BadInput, of the command's `option`, for what no controller can do, and for other events between iterations.
    """
    content = choose(controller, option=option).content
    other = next((event for event in plan.events if event.between_iterations), None)
    if other is not None:
        raise BadInput.of(option, "option", controller, f"no {other} beside it: one or the other")
    if not plan.cases:
        raise BadInput.of(option, "schedules", "none that fits", "one to begin with")
    if len(plan.jobs) > 1:
        return _with_shifted_starts(plan, controller, may, content, option)
    if may.routes > 1 and plan.enforcement == "ports":
        expected = "--enforce rules beside it: a node's port, which routers hash, is chosen before it connects"
        raise BadInput.of(VARY, "routes", may.routes, expected)
    choices, begins = [case.jobs[0].choice for case in plan.cases], plan.cases[0]
    job = adaptable_job(plan, choices, may)
    able = tuple({recipe.choice.label: recipe.choice for recipe in job.recipes}.values())
    if able[0] != begins.jobs[0].choice:
        raise BadInput.of(option, "schedule", begins.label, "one to begin with that needs no solver")
    _, *counts = dict.fromkeys(setting.microbatches for setting in job.settings)
    adaptation = Adaptation(controller, able, SWAP_S, tuple(counts), may.routes, may.stages, content=content)
    return replace(job.plan, cases=(begins,), adaptation=adaptation)


def _with_shifted_starts(plan: Plan, controller: str, may: MayChange, content: str | None, option: str) -> Plan:
    """The plan of several jobs, of which nothing may change but when they begin."""
    begins, *others = plan.cases
    expected = "starts=N alone, of several jobs: they keep schedules, microbatches, routes and stages"
    if not may.starts or may._replace(starts=0) != NOTHING:
        raise BadInput.of(option if may == NOTHING else VARY, "jobs", len(plan.jobs), f"{VARY} {expected}")
    if others:
        raise BadInput.of(option, "cases", len(plan.cases), "one schedule and one policy: several jobs keep theirs")
    if not begins.starts_s:
        jobs = jobs_in_rounds(replace(plan, cases=(begins,)), may.starts)
        starts_s = best_starts_of(jobs, jobs.loads(jobs.believed(jobs.belief()), starts_of(plan, begins)))
        begins = replace(begins, starts_s=starts_s)
    adaptation = Adaptation(controller, (), SHIFT_S, starts=may.starts, content=content)
    return replace(plan, cases=(begins,), adaptation=adaptation)
