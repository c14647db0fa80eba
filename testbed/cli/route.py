"""`testbed route`: what several routes per flow are worth, policy by policy, by the model alone."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import options
from testbed.cli.plan import plan_of
from testbed.errors import BadInput
from testbed.units import finite

if TYPE_CHECKING:
    from testbed.model.network import Floats
    from testbed.plan.plan import Case, Plan
    from testbed.routing.apply import Demands
    from testbed.routing.completion_times import Completions
    from testbed.routing.policy_comparison import PolicyOutcome


_DistributionFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", callback=options.drawable, help="Draw how flow completion times are distributed: .svg or .png."
    ),
]


def route(
    what: options.TopologyOrPlan,
    workloads: options.MoreWorkloads = None,
    policy: options.Policies = None,
    schedule: options.Schedules = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, max=10_000, metavar="N", help="Draws of a policy with a seed: the median and the worst."),
    ] = 20,
    elephants_from: options.ElephantsFrom = None,
    detour: options.Detour = None,
    lose: options.Lost = None,
    rounds: options.Rounds = None,
    background: options.BackgroundFile = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=options.drawable, help="Draw the network and its load: an .svg or .png."),
    ] = None,
    cdf: _DistributionFile = None,
    trust: options.Trust = False,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Choose routes by each policy and compare them: rates, loads, iteration times. Needs no root.

    The jobs have the first of their schedules, or the one that --schedule names, and all are there. Without --policy:
    shortest, ecmp and greedy. Rates are max-min-fair, as if every flow always had something to send; iteration times
    are the event model's. `testbed plan --policy` writes a plan with such routes.
    """
    from testbed.cli.progress import Terminal
    from testbed.planning.left_out import of_changes, warnings
    from testbed.routing.apply import demands, framing_for
    from testbed.routing.policies import choose, policies_once
    from testbed.routing.policy_comparison import PolicyComparison, compare
    from testbed.routing.rerouting import without

    chosen = policies_once([choose(text) for text in policy or ["shortest", "ecmp", "greedy"]])
    reach = options.reach_of(elephants_from, detour)
    _require_one(schedule)
    asked = plan_of(what, workloads, schedule, settings, background=background, rounds=rounds, quiet=quiet, trust=trust)
    if not asked.cases:
        raise BadInput.of(str(what), "schedules", "none that fits", "one whose messages can be routed")
    plan = without(replace(asked, framing=framing_for(asked, reach.detour), events=()), lose or ())
    case = plan.cases[0]
    wanted = demands(plan, case, reach)
    gc.freeze()  # a plan stays to the end: to look for cycles in it at every choice of routes takes a tenth of all time
    with Terminal(quiet=quiet).solving() as watch:
        outcomes = compare(plan, case, wanted, PolicyComparison(chosen, reach, seeds), watch)
    # of the default routes: what links and transport do is the same on all
    warned = [*of_changes(asked), *warnings(replace(plan, cases=(case,)))]
    if picture is not None:
        _draw_load(plan, outcomes, picture)
    if cdf is not None:
        _draw_distribution(outcomes, cdf)
    if as_json:
        options.emit(_document(plan, case, wanted, outcomes) | {"warnings": warned})
        return
    _show(plan, case, wanted, outcomes, options.warnings(warned))
    _say_drawn(picture, cdf)


def _say_drawn(*pictures: Path | None) -> None:
    for drawn in filter(None, pictures):
        options.stdout_console(80).print(f"drawn in {drawn}", highlight=False, soft_wrap=True)


def _require_one(schedules: Sequence[str] | None) -> None:
    """Raises BadInput where several schedules are named, of which one alone would be taken."""
    for another in schedules or ():
        if schedules and another != schedules[0]:
            raise BadInput.of("--schedule", "option", another, f"one, which all routes are for ({schedules[0]})")


def _draw_load(plan: Plan, outcomes: Sequence[PolicyOutcome], path: Path) -> None:
    from testbed.files import output
    from testbed.plan.network_state import planned
    from testbed.routing.load_picture import draw

    with output(path, "--picture") as partial:
        draw(planned(plan.network), outcomes, partial)


def _draw_distribution(outcomes: Sequence[PolicyOutcome], path: Path) -> None:
    """Raises BadInput where no message of a flow to route crosses a link."""
    from testbed.files import output
    from testbed.routing.completion_picture import draw_distribution

    found = [one for one in _completions(outcomes) if len(one.draws[0])]
    if not found:
        raise BadInput.of("--cdf", "option", str(path), "flows over links that send as much as --elephants-from")
    with output(path, "--cdf") as partial:
        draw_distribution(found, partial)


def _completions(outcomes: Sequence[PolicyOutcome]) -> list[Completions]:
    """Of every policy once."""
    return list({outcome.completions.policy: outcome.completions for outcome in outcomes}.values())


def _show(plan: Plan, case: Case, wanted: Demands, outcomes: Sequence[PolicyOutcome], warnings: Sequence[str]) -> None:
    from testbed.cli import route_tables

    console = options.stdout_console(80)
    options.show(
        console,
        route_tables.heading(plan, case, wanted),
        route_tables.demand_table(plan, wanted),
        *route_tables.metric_tables(outcomes, console.width),
        *route_tables.job_tables(plan, outcomes, console.width),
        *route_tables.completion_tables(_completions(outcomes), console.width),
        *route_tables.load_tables(plan, outcomes, console.width),
        *route_tables.route_tables(plan, outcomes, console.width),
        *route_tables.remarks(wanted, outcomes),
        *warnings,
    )


def _document(plan: Plan, case: Case, wanted: Demands, outcomes: Sequence[PolicyOutcome]) -> dict[str, Any]:
    from testbed.plan.events import lost
    from testbed.plan.network_state import planned

    labels = [direction.label for direction in planned(plan.network).everything]
    return {
        "topology": plan.network.name,
        "jobs": [job.name for job in plan.jobs],
        "case": case.label,
        "lost": list(lost(plan, case)),
        "flows": _flow_documents(plan, wanted),
        "completion_times": [_completion_document(one) for one in _completions(outcomes)],
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


def _completion_document(one: Completions) -> dict[str, Any]:
    """Of all draws together, and of each; null without messages."""
    from testbed.routing.completion_times import Quantiles, quantiles

    def of(times_s: Floats) -> dict[str, float | None]:
        return quantiles(times_s)._asdict() if len(times_s) else dict.fromkeys(Quantiles._fields)

    document = {"policy": one.policy, "messages": len(one.draws[0]), **of(one.pooled)}
    return document | {"draws": [of(draw) for draw in one.draws]}


def _policy_document(outcome: PolicyOutcome, labels: Sequence[str]) -> dict[str, Any]:
    """Rates of flows that cross nothing, and times of jobs that reduce nothing, are null."""
    metric = outcome.metric
    return {
        "policy": outcome.label,
        "most_flows": metric.most_flows,
        "job_rates_bps": [finite(rate) for rate in metric.job_rates_bps.tolist()],
        "all_reduce_s": [finite(seconds) for seconds in metric.all_reduce_s.tolist()],
        "jain": metric.jain,
        "iteration_s": list(outcome.iteration_s),
        "predicted_low_s": [each and each.low_s for each in outcome.predicted_ranges],
        "predicted_high_s": [each and each.high_s for each in outcome.predicted_ranges],
        "orders_tried": outcome.orders_tried,
        "controller_s": outcome.routed.seconds,
        "remark": outcome.routed.remark,
        "rates_bps": [finite(rate) for rate in metric.rates_bps.tolist()],
        "routes": [
            [labels[index] for index in outcome.wanted.problem.routes_of(flow)[number]]
            for flow, number in enumerate(outcome.routed.choice.tolist())
        ],
        "links": [
            {"direction": label, "flows": flows, "wire_bytes": size}
            for label, flows, size in zip(labels, outcome.flows.tolist(), outcome.wire_bytes.tolist(), strict=True)
        ],
    }
