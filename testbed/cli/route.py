"""`testbed route`: what several routes per flow are worth, policy by policy, by the model alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.options import (
    AsJson,
    Detour,
    ElephantsFrom,
    Policies,
    Quiet,
    Schedules,
    Settings,
    TopologyOrPlan,
    drawable,
    emit,
    reach_of,
    stdout_console,
)
from testbed.cli.plan import complete, read_plan, refuse_beside_plan
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.plan.plan import Case, Plan
    from testbed.routing.apply import Demands
    from testbed.routing.policy_comparison import PolicyOutcome


def route(
    what: TopologyOrPlan,
    workloads: Annotated[
        list[Path] | None,
        typer.Argument(metavar="WORKLOAD...", help="Files such as workloads/*.yaml, each a job of its own."),
    ] = None,
    policy: Policies = None,
    schedule: Schedules = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, max=10_000, metavar="N", help="Draws of a policy with a seed: the median and the worst."),
    ] = 20,
    elephants_from: ElephantsFrom = None,
    detour: Detour = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=drawable, help="Draw the network and its load: an .svg or .png."),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Choose routes by each policy and compare them: rates, loads, iteration times. Needs no root.

    The jobs have the first of their schedules, or the one that --schedule names, and all are there. Without --policy:
    shortest, ecmp and greedy. Rates are max-min-fair, as if every flow always had something to send; iteration times
    are the event model's. `testbed plan --policy` writes a plan with such routes.
    """
    from testbed.cli.progress import Terminal
    from testbed.planning import resolve
    from testbed.planning.left_out import warnings
    from testbed.routing.apply import demands, framing_for
    from testbed.routing.policies import choose
    from testbed.routing.policy_comparison import PolicyComparison, compare

    chosen = [choose(text) for text in policy or ["shortest", "ecmp", "greedy"]]
    reach = reach_of(elephants_from, detour)
    if workloads:
        refuse_beside_plan(what, workloads)
        unfinished = resolve.load_plan(what, *workloads, settings=settings or [])
        plan = complete(unfinished, schedule, None, quiet=quiet, sources=workloads)
    else:
        plan = read_plan(what, {"--schedule": schedule, "--set": settings})
    if not plan.cases:
        raise BadInput.of(str(what), "schedules", "none that fits", "one whose messages can be routed")
    plan, case = replace(plan, framing=framing_for(plan, reach.detour), events=()), plan.cases[0]
    wanted = demands(plan, case, reach)
    with Terminal(quiet=quiet).solving() as watch:
        outcomes = compare(plan, case, wanted, PolicyComparison(chosen, reach, seeds), watch)
    # of the default routes: what links and transport do is the same on all
    warned = warnings(replace(plan, cases=(case,)))
    if picture is not None:
        from testbed.files import output
        from testbed.plan.network_state import planned
        from testbed.routing.load_picture import draw

        with output(picture, "--picture") as partial:
            draw(planned(plan.network), outcomes, partial)
    if as_json:
        emit(_document(plan, case, wanted, outcomes) | {"warnings": warned})
        return
    _show(plan, case, wanted, outcomes)
    for line in warned:
        stdout_console(80).print(f"warning: {line}", highlight=False, markup=False)
    if picture is not None:
        stdout_console(80).print(f"drawn in {picture}", highlight=False, soft_wrap=True)


def _show(plan: Plan, case: Case, wanted: Demands, outcomes: Sequence[PolicyOutcome]) -> None:
    from testbed.cli import route_tables

    console = stdout_console(80)
    console.print(route_tables.heading(plan, case, wanted), highlight=False, markup=False)
    console.print(route_tables.demand_table(plan, wanted))
    for tables in (
        route_tables.metric_tables(outcomes, console.width),
        route_tables.job_tables(plan, outcomes, console.width),
        route_tables.load_tables(plan, outcomes, console.width),
        route_tables.route_tables(plan, outcomes, console.width),
    ):
        for table in tables:
            console.print(table)
    for line in route_tables.remarks(wanted, outcomes):
        console.print(line, highlight=False, markup=False)


def _document(plan: Plan, case: Case, wanted: Demands, outcomes: Sequence[PolicyOutcome]) -> dict[str, Any]:
    from testbed.plan.network_state import planned

    labels = [direction.label for direction in planned(plan.network).everything]
    return {
        "topology": plan.network.name,
        "jobs": [job.name for job in plan.jobs],
        "case": case.label,
        "flows": _flow_documents(plan, wanted),
        "policies": [
            _policy_document(outcome, labels)
            | ({} if outcome.wanted is wanted else {"flows": _flow_documents(plan, outcome.wanted)})
            for outcome in outcomes
        ],
    }


def _flow_documents(plan: Plan, wanted: Demands) -> list[dict[str, Any]]:
    return [
        {
            "job": plan.jobs[commodity.job].name,
            "kinds": [kind.value for kind in commodity.kinds],
            "source": commodity.source,
            "target": commodity.target,
            "wire_bytes": commodity.wire_bytes,
            "collective_bytes": commodity.collective_bytes,
            "when_s": [list(span) for span in commodity.when],
            "routed": routed,
        }
        for routed, mine in ((True, wanted.elephants), (False, wanted.mice))
        for commodity in mine
    ]


def _policy_document(outcome: PolicyOutcome, labels: Sequence[str]) -> dict[str, Any]:
    """Rates of flows that cross nothing, and times of jobs that reduce nothing, are null."""
    metric = outcome.metric
    return {
        "policy": outcome.label,
        "most_flows": metric.most_flows,
        "job_rates_bps": [_finite(rate) for rate in metric.job_rates_bps.tolist()],
        "all_reduce_s": [_finite(seconds) for seconds in metric.all_reduce_s.tolist()],
        "jain": metric.jain,
        "iteration_s": list(outcome.iteration_s),
        "predicted_low_s": [each and each.low_s for each in outcome.predicted_ranges],
        "predicted_high_s": [each and each.high_s for each in outcome.predicted_ranges],
        "controller_s": outcome.routed.seconds,
        "remark": outcome.routed.remark,
        "rates_bps": [_finite(rate) for rate in metric.rates_bps.tolist()],
        "routes": [
            [labels[index] for index in outcome.wanted.problem.routes_of(flow)[number]]
            for flow, number in enumerate(outcome.routed.choice.tolist())
        ],
        "links": [
            {"direction": label, "flows": flows, "wire_bytes": size}
            for label, flows, size in zip(labels, outcome.flows.tolist(), outcome.wire_bytes.tolist(), strict=True)
        ],
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
