"""`testbed shell`: Mininet's command line in the lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from testbed import extras
from testbed.cli import options
from testbed.cli.plan import is_plan, read_plan
from testbed.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from testbed.lab.lab import Lab
    from testbed.plan.plan import Case, Plan


def shell(
    what: options.TopologyOrPlan,
    case: Annotated[
        str | None,
        typer.Option(metavar="LABEL", help="Of a plan, the case whose routes are in force; default: the first."),
    ] = None,
    shaper: options.ShaperOption = options.AUTO_SHAPER,
    host_priority: options.HostPriorityOption = None,
    trust: options.Trust = False,
) -> None:
    """Open Mininet's command line in the lab, or read its commands from a pipe. Needs root, or user namespaces.

    A topology has its default routes. A plan has those of a case, as `run` would have them, without what the case has
    lost; nothing trains, and no event happens.
    """
    from testbed.planning.resolve import measurement_of
    from testbed.spec import load_topology

    if is_plan(what):
        plan = read_plan(what, {}, trust=trust)
        shown = _case_of(plan, case)
    elif case is not None:
        raise BadInput.of("--case", "option", case, "a plan: a topology has no cases")
    else:
        plan, shown = measurement_of(load_topology(what)), None
    extras.require("train")

    def body() -> int:
        from testbed.cli.progress import Terminal
        from testbed.lab.command_line import open_shell
        from testbed.lab.lab import Lab
        from testbed.plan.costs import largest_burst_bytes

        say, priority = Terminal(quiet=False).say, options.host_priority_of(host_priority, guest=False)
        room = {} if shown is None else {"largest_burst_bytes": largest_burst_bytes(plan)}
        with Lab(plan, shaper=shaper, progress=say, host_priority=priority, **room) as lab:
            if shown is not None:
                say(_on_routes(lab, plan, shown))
            open_shell(lab)
        return ExitCode.OK

    raise typer.Exit(options.in_sandbox(body, interactive=True))


def _case_of(plan: Plan, label: str | None) -> Case:
    """The case of this label, or the first. Raises BadInput."""
    if label is None:
        return plan.cases[0]
    found = next((case for case in plan.cases if case.label == label), None)
    if found is None:
        labels = ", ".join(case.label for case in plan.cases)
        raise BadInput.of("--case", "label", label, f"one of {labels}")
    return found


def _on_routes(lab: Lab, plan: Plan, case: Case) -> str:
    """Put the routes of a case into force, on what it has of the network; returns what to say of that."""
    from testbed.plan.events import lost
    from testbed.plan.routes import routes_of_nodes

    gone, wanted = lost(plan, case), routes_of_nodes(plan, case)
    if gone:
        lab.routes.lose(*gone)
    if plan.enforcement == "ports":
        lab.routes.choose_ports(wanted)
    enforced = lab.routes.use(wanted)
    without = f", without {' + '.join(gone)}" if gone else ""
    others = f"{len(enforced.pinned)} pairs of nodes elsewhere than by default"
    return f"routes of {case.label}{without}: {enforced if plan.enforcement == 'ports' else others}"
