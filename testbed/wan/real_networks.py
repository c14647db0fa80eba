"""Which plans machines of their own can train: what a rank says of its plan before it looks for the others."""

from __future__ import annotations

from dataclasses import replace

from testbed.errors import BadInput
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.resolve import require_trainable, with_clock
from testbed.wan.admission import of_another_size


def require_suitable(plan: Plan, world_size: int) -> None:
    """Raises BadInput for a plan that so many processes cannot train here, as far as a rank sees it by itself."""
    require_a_real_network(plan)
    if (n_ranks := sum(job.mesh.size for job in plan.jobs)) != world_size:
        raise of_another_size(world_size, n_ranks)


def require_a_real_network(plan: Plan) -> Plan:
    """The plan on the clock of the machines. Raises BadInput where it asks for what only a lab can do."""
    if plan.background:
        raise BadInput.of(file.NAME, "background", f"{len(plan.background)} rows", "none: a real network has its own")
    if plan.events:
        raise BadInput.of(
            file.NAME, "events", f"{len(plan.events)} of them", "none: nothing changes a real one at will"
        )
    if plan.adaptation is not None:
        expected = "none: ranks on machines of their own keep the schedule that they began with"
        raise BadInput.of(file.NAME, "adaptation", plan.adaptation.controller, expected)
    if plan.network.limits:
        nodes = ", ".join(limit.node for limit in plan.network.limits)
        raise BadInput.of(file.NAME, "network.limits", nodes, "none: a machine of its own is nobody's to limit")
    if plan.recovery is not None:
        expected = "none: no worker on machines of their own is ended, and started anew"
        asked = "checkpoints" if plan.recovery.checkpoints is not None else "elastic"
        raise BadInput.of(file.NAME, "recovery", asked, expected)
    plan = with_clock(plan, replace(plan.clock, name="real"))
    require_trainable(plan)
    if plan.rounds == "free":
        expected = "together: on machines of their own ranks hear late of what they are told"
        raise BadInput.of(plan.network.name, "rounds", plan.rounds, expected)
    return plan
