"""What `testbed route` prints: demands, the metric, the load of links, and routes, a column for each policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from testbed.cli.range_cells import show_ranges
from testbed.cli.table_layout import Column, Section, fitted
from testbed.grouping import grouped
from testbed.plan.events import lost
from testbed.plan.network_state import network_at, planned
from testbed.routing.completion_times import quantiles
from testbed.units import finite, show_rates, show_size, show_sizes, show_time, show_times

if TYPE_CHECKING:
    from testbed.plan.plan import Case, Plan, Route
    from testbed.planning.ties import Range
    from testbed.routing.apply import Demands
    from testbed.routing.completion_times import Completions
    from testbed.routing.policy_comparison import PolicyOutcome

_MOST_ROWS = 24
"""Of links and of routes on the screen; --json has all."""


def heading(plan: Plan, case: Case, wanted: Demands) -> str:
    """What is routed where."""
    names, network = ", ".join(job.name for job in plan.jobs), plan.network
    several = sum(len(candidates) > 1 for candidates in wanted.problem.candidates)
    most = max((len(candidates) for candidates in wanted.problem.candidates), default=0)
    without = f" without {' + '.join(gone)}" if (gone := lost(plan, case)) else ""
    links = len((state := network_at(plan, case)).links) - len(state.down)
    return (
        f"{names} on {network.name}{without}, {case.label}: {len(wanted.elephants)} flows to route, "
        f"{len(wanted.mice)} too small\n"
        f"{links // 2} links; {several} of {len(wanted.problem.candidates)} pairs of places "
        f"have several routes, up to {most}"
    )


def demand_table(plan: Plan, wanted: Demands) -> Table:
    """Per job and kinds of traffic, how many flows and how many bytes, and when they are under way."""
    groups = grouped(
        ((flow.job, ",\n".join(kind.value for kind in flow.kinds), routed), flow)
        for routed, mine in ((True, wanted.elephants), (False, wanted.mice))
        for flow in mine
    )
    table = Table(title="what is sent in an iteration", title_justify="left")
    for name in ("job", "kinds"):
        table.add_column(name, overflow="fold")
    for name in ("flows", "bytes each", "when", "under way"):
        table.add_column(name, justify="right")
    for (job, kinds, routed), flows in groups.items():
        sizes = [flow.wire_bytes for flow in flows]
        begins, ends = min(flow.when[0][0] for flow in flows), max(flow.when[-1][1] for flow in flows)
        each = show_size(min(sizes)) + (f" to {show_size(max(sizes))}" if max(sizes) > 1.01 * min(sizes) else "")
        table.add_row(
            plan.jobs[job].name,
            kinds + ("" if routed else "\n(too small)"),
            str(len(flows)),
            each,
            f"{show_time(begins)} to\n{show_time(ends)}",
            show_time(sum(flow.busy_s for flow in flows) / len(flows)),
        )
    return table


def metric_tables(outcomes: Sequence[PolicyOutcome], width: int) -> list[Table]:
    """The metric of every policy, a row each."""
    metrics = [outcome.metric for outcome in outcomes]
    worst = [finite(min(metric.vector(), default=math.inf)) for metric in metrics]
    reduced = [max((s for s in metric.all_reduce_s.tolist() if s == s), default=None) for metric in metrics]
    jain = Column("Jain\nindex", [f"{metric.jain:.3f}" for metric in metrics])
    columns = [
        Column("most\nflows", [str(metric.most_flows) for metric in metrics]),
        Column("worst\njob", show_rates(worst)),
        *([Column("slowest\nall-reduce", show_times(reduced))] if any(reduced) else []),
        *([jain] if any(metric.jain < 1 for metric in metrics) else []),
        Column("longest\niteration", show_ranges(*_longest(outcomes))),
        Column("took", [show_time(outcome.routed.seconds) for outcome in outcomes]),
    ]
    return fitted(_policies(outcomes), [Section("two-layer metric", columns)], width)


def _longest(outcomes: Sequence[PolicyOutcome]) -> tuple[list[float], list[Range | None]]:
    """Per policy, the iteration of the job that may take longest, and its range."""
    each = [
        max(
            zip(outcome.iteration_s, outcome.predicted_ranges, strict=True),
            key=lambda pair: pair[1].high_s if pair[1] else pair[0],
        )
        for outcome in outcomes
    ]
    return [seconds for seconds, _ in each], [predicted_range for _, predicted_range in each]


def job_tables(plan: Plan, outcomes: Sequence[PolicyOutcome], width: int) -> list[Table]:
    """Where there are several jobs: per policy, the rate and the iteration of each."""
    if len(plan.jobs) < 2:
        return []
    sections = []
    for number, job in enumerate(plan.jobs):
        # nothing limits a job behind the last one that has flows to route
        limits = ([*outcome.metric.job_rates_bps.tolist()[number:], math.inf] for outcome in outcomes)
        rates = [finite(each[0]) for each in limits]
        seconds = [outcome.iteration_s[number] for outcome in outcomes]
        ranges = [outcome.predicted_ranges[number] for outcome in outcomes]
        columns = [Column("rate", show_rates(rates)), Column("iteration", show_ranges(seconds, ranges))]
        sections.append(Section(job.name, columns))
    return [table for section in sections for table in fitted(_policies(outcomes), [section], width)]


def completion_tables(found: Sequence[Completions], width: int) -> list[Table]:
    """Flow completion times of every policy, over all its seeds; and how far these are apart."""
    found = [one for one in found if len(one.draws[0])]
    if not found:
        return []
    each = [quantiles(one.pooled) for one in found]
    cells = [show_times([row[place] for row in each]) for place in range(len(each[0]))]
    columns = [Column(name, mine) for name, mine in zip(("median", "p95", "p99", "max"), cells, strict=True)]
    if any(len(one.draws) > 1 for one in found):
        worst = show_times([max(quantiles(draw).p99_s for draw in one.draws) for one in found])
        columns = [
            Column("seeds", [str(len(one.draws)) if len(one.draws) > 1 else "-" for one in found]),
            *columns,
            Column("p99 of the\nworst seed", worst),
        ]
    key = Column("policy", [one.policy for one in found], left=True)
    title = f"flow completion times, {len(found[0].draws[0])} messages over links"
    return fitted(key, [Section(title, columns)], width)


def load_tables(plan: Plan, outcomes: Sequence[PolicyOutcome], width: int) -> list[Table]:
    """The most loaded directions of links: under each policy bytes of all flows, and how many are routed over it."""
    directions = planned(plan.network).links
    heaviest = [
        max(float(outcome.wire_bytes[index]) / direction.rate_bps for outcome in outcomes)
        for index, direction in enumerate(directions)
    ]
    loaded = [index for index, seconds in enumerate(heaviest) if seconds > 0]
    rows = sorted(sorted(loaded, key=lambda index: -heaviest[index])[:_MOST_ROWS])
    if not rows:
        return []
    key = Column("direction", [directions[index].label for index in rows], left=True)
    more = f"; {len(loaded) - len(rows)} more have less" if len(loaded) > len(rows) else ""
    columns = []
    for outcome in outcomes:
        sizes = show_sizes([float(outcome.wire_bytes[index]) for index in rows])
        cells = [f"{size} ({outcome.flows[index]})" for size, index in zip(sizes, rows, strict=True)]
        columns.append(Column(outcome.label.replace(", ", "\n"), cells))
    return fitted(key, [Section(f"bytes of an iteration on links (flows){more}", columns)], width)


def route_tables(plan: Plan, outcomes: Sequence[PolicyOutcome], width: int) -> list[Table]:
    """Where a policy has a choice: the places between a flow's ends, or the name of the single link it takes."""
    links = planned(plan.network).links
    routes = [_routes(outcome) for outcome in outcomes]
    flows = list(dict.fromkeys(ends for mine in routes for ends in mine))
    if not flows or len(flows) > _MOST_ROWS:
        return []
    columns = []
    for outcome, mine in zip(outcomes, routes, strict=True):
        ways = ([links[index] for index in mine.get(ends, ())] for ends in flows)
        cells = [", ".join(hop.target for hop in way[:-1]) or (way[0].link if way else "-") for way in ways]
        columns.append(Column(outcome.label.replace(", ", "\n"), cells, left=True))
    names = [f"{source} to {target}" for source, target in flows]
    return fitted(Column("flow, and what it goes over", names, left=True), [Section("routes", columns)], width)


def _routes(outcome: PolicyOutcome) -> dict[tuple[str, str], Route]:
    """By ends, the routes of the flows that had a choice."""
    problem, choice = outcome.wanted.problem, outcome.routed.choice
    return {
        (flow.source, flow.target): problem.routes_of(number)[int(choice[number])]
        for number, flow in enumerate(outcome.wanted.elephants)
        if len(problem.routes_of(number)) > 1
    }


def remarks(wanted: Demands, outcomes: Sequence[PolicyOutcome]) -> list[str]:
    """What a user should know beside the tables."""
    found = [f"{outcome.label}: {outcome.routed.remark}" for outcome in outcomes if outcome.routed.remark]
    if any(each is not None and each.order_sensitive for outcome in outcomes for each in outcome.predicted_ranges):
        found.append("an iteration from one time to another: who comes first of messages that meet at a link decides")
    if not all(outcome.orders_tried for outcome in outcomes):
        found.append(
            "iterations are predicted in one order of messages that meet, since the plan is large: what another order "
            "makes of a policy, predict says of the plan that `testbed plan --policy` writes"
        )
    if not wanted.elephants:
        found.append("there is nothing to route: no flow sends as much as --elephants-from in an iteration")
    elif not any(len(candidates) > 1 for candidates in wanted.problem.candidates):
        found.append("there is nothing to choose: every flow has one route alone")
    return found


def _policies(outcomes: Sequence[PolicyOutcome]) -> Column:
    return Column("policy", [outcome.label for outcome in outcomes], left=True)
