"""A plan whose job adapts while a lab trains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.adaptation.adaptable_job import ROUTES, adaptable_job
from testbed.adaptation.controller import choose
from testbed.errors import BadInput
from testbed.plan.plan import Adaptation, Plan

OPTION = "--adapt"
SWAP_S = 20e-3
"""What a controller takes a swap to cost: buffers of another order are made, and receives posted anew."""


def with_adaptation(
    plan: Plan, controller: str, swap_s: float = SWAP_S, microbatches: Sequence[int] = (), routes: int = 1
) -> Plan:
    """The plan whose first case is trained, and goes on with the schedules of the others, in any of these numbers of
    microbatches and over so many routes too, when the controller says so.

    Raises BadInput for what no controller can do, and for other events between iterations.
    """
    content = choose(controller, option=OPTION).content
    other = next((event for event in plan.events if event.between_iterations), None)
    if other is not None:
        raise BadInput.of(OPTION, "option", controller, f"no {other} beside it: one or the other")
    if not plan.cases:
        raise BadInput.of(OPTION, "schedules", "none that fits", "one to begin with")
    if routes > 1 and plan.enforcement == "ports":
        expected = "--enforce rules beside it: a node's port, which routers hash, is chosen before it connects"
        raise BadInput.of(ROUTES, "option", routes, expected)
    choices, begins = [case.jobs[0].choice for case in plan.cases], plan.cases[0]
    job = adaptable_job(plan, choices, microbatches, routes)
    able = tuple(recipe.choice for recipe in job.recipes if recipe.setting == job.recipes[0].setting)
    if able[0] != begins.jobs[0].choice:
        raise BadInput.of(OPTION, "schedule", begins.label, "one to begin with that needs no solver")
    _, *counts = dict.fromkeys(setting.microbatches for setting in job.settings)
    adaptation = Adaptation(controller, able, swap_s, tuple(counts), routes, content)
    return replace(job.plan, cases=(begins,), adaptation=adaptation)
