"""A plan whose job adapts while a lab trains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.adaptation.adaptable_job import adaptable_job
from testbed.adaptation.controller import choose
from testbed.errors import BadInput
from testbed.plan.plan import Adaptation, Plan

OPTION = "--adapt"
SWAP_S = 20e-3
"""What a controller takes a swap to cost: buffers of another order are made, and receives posted anew."""


def with_adaptation(plan: Plan, controller: str, swap_s: float = SWAP_S, microbatches: Sequence[int] = ()) -> Plan:
    """The plan whose first case is trained, and goes on with the schedules of the others, in any of these numbers of
    microbatches too, when the controller says so.

    Raises BadInput for what no controller can do, and for other events between iterations.
    """
    content = choose(controller, option=OPTION).content
    other = next((event for event in plan.events if event.between_iterations), None)
    if other is not None:
        raise BadInput.of(OPTION, "option", controller, f"no {other} beside it: one or the other")
    if not plan.cases:
        raise BadInput.of(OPTION, "schedules", "none that fits", "one to begin with")
    job, begins = adaptable_job(plan, [case.jobs[0].choice for case in plan.cases], microbatches), plan.cases[0]
    planned, *others = job.settings
    choices = tuple(recipe.choice for recipe in job.recipes if recipe.setting == planned)
    if choices[0] != begins.jobs[0].choice:
        raise BadInput.of(OPTION, "schedule", begins.label, "one to begin with that needs no solver")
    counts = tuple(setting.microbatches for setting in others)
    return replace(plan, cases=(begins,), adaptation=Adaptation(controller, choices, swap_s, counts, content))
