"""The network-wide metric of a case three ways: filled on its routes, predicted in an iteration, and measured.

Per job the least rate of its flows, of which the two-layer metric compares the vectors (routing/fairness.py); the most
flows on a direction; what reductions, iterations and messages take. What is predicted and measured is of the same
messages in the same iterations: those whose arrival somebody was waiting for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from testbed.grouping import grouped
from testbed.judge.fidelity import DirectionCounters
from testbed.model.network import Floats
from testbed.plan import routes
from testbed.plan.background import background_bps
from testbed.plan.events import at_work
from testbed.plan.network_state import network_at
from testbed.plan.plan import Case, Plan
from testbed.plan.traffic import planned_traffic
from testbed.routing.apply import has_choice
from testbed.routing.demand import Commodity, commodities_in
from testbed.routing.fairness import better, bytes_per_direction, flows_per_direction, jain_index, measured_by
from testbed.routing.routing_problem import RoutingProblem, settled_problem
from testbed.thresholds import TIE
from testbed.trace.tables import ALL_REDUCE, NOTICE, REDUCE_SCATTER, Table, Trace
from testbed.units import finite

Each = list[float | None]
"""Per job; None where a job has nothing of the kind."""


@dataclass(frozen=True)
class Filled:
    """On the routes, as if every flow always had something to send."""

    rates_bps: Each
    """Of the job's slowest flow, headers included, as links carry them; None where nothing limits it."""
    most_flows: int
    """On any direction of a link."""
    all_reduce_s: Each
    """What the slowest flow takes for its bytes of data parallelism."""
    jain: float
    """Jain's index of the rates."""


@dataclass(frozen=True)
class Seen:
    """In an iteration, predicted or measured (medians over iterations); of flows that cross links."""

    rates_bps: Each
    """Of the job's slowest flow, its tensors per second in which something of it is under way."""
    most_flows: int
    """On any direction of a link; measured: as its counted bytes make it."""
    jain: float
    iteration_s: list[float]
    all_reduce_s: Each
    """From the first message of a reduction to the last one's arrival."""
    fct_median_s: Each
    """Flow completion time: from a message being handed to the network to its last byte being there."""
    fct_worst_s: Each
    fct_p95_s: Each = field(default_factory=list)
    """Of runs of an earlier version [], as the next one."""
    fct_p99_s: Each = field(default_factory=list)


@dataclass(frozen=True)
class CaseFairness:
    """The metric of one case; lists have an entry for each of `jobs`, those at work."""

    label: str
    jobs: list[str]
    flows: int
    """That cross links and count."""
    elephants_from: float
    """Bytes in an iteration: flows that send less do not count."""
    filled: Filled
    predicted: Seen
    measured: Seen


LATER_OUTCOMES = frozenset({"fct_p95_s", "fct_p99_s"})
"""Of `Seen`, what earlier versions did not write."""


class Flows(NamedTuple):
    """What counts in a case."""

    problem: RoutingProblem
    """Every flow on the route that it has."""
    pairs: frozenset[tuple[int, int]]
    """(source rank, target rank) of those that cross links."""


FlowKey = tuple[int, ...]
"""Of a message in an iteration: its _NAME."""

_NAME = ("job", "kind", "stage", "microbatch", "source_rank", "target_rank")


class SentMessage(NamedTuple):
    """A message on its way."""

    sent_s: float
    arrived_s: float
    payload_bytes: float


def counts(plan: Plan) -> bool:
    """Whether there is anything to share or to choose: several jobs, a policy's routes, or several routes."""
    return len(plan.jobs) > 1 or plan.elephants_from is not None or has_choice(plan)


def flows_of(plan: Plan, case: Case, predicted: Trace) -> Flows:
    """The flows of a case that count, by the predicted trace of one iteration."""
    least, taken = plan.elephants_from or 0.0, routes.routes_of_nodes(plan, case)
    rank_at = {node: rank for rank, node in routes.nodes_of_ranks(plan).items()}
    found = [commodity for commodity in commodities_in(plan, predicted) if commodity.wire_bytes >= least]

    def route_of(commodity: Commodity) -> tuple[int, ...]:
        return taken.get((commodity.source, commodity.target), ())

    crossing = frozenset(
        (rank_at[commodity.source], rank_at[commodity.target]) for commodity in found if route_of(commodity)
    )
    network = network_at(plan, case)
    problem = settled_problem(network, found, [route_of(commodity) for commodity in found])
    if plan.background:
        problem = replace(problem, rate_bps=problem.rate_bps - np.array(background_bps(plan, network)))
    return Flows(problem, crossing)


def filled(plan: Plan, case: Case, flows: Flows) -> Filled:
    """Progressive filling of the routes."""
    metric = measured_by(flows.problem, np.zeros(flows.problem.n_flows, np.int64))
    missing = [math.nan] * (len(plan.jobs) - flows.problem.n_jobs)
    rates, reduced = (
        [finite(value) for number, value in enumerate([*values.tolist(), *missing]) if number in at_work(plan, case)]
        for values in (metric.job_rates_bps, metric.all_reduce_s)
    )
    return Filled(rates, metric.most_flows, reduced, metric.jain)


def seen(
    jobs: Sequence[int],
    flows: Flows,
    trace: Trace,
    known: Mapping[FlowKey, SentMessage],
    most_flows: int,
    took_s: Sequence[float],
) -> Seen:
    """Of the jobs with these numbers in all iterations of a trace, which took `took_s`; rates and completion times of
    the messages `known`."""
    rates, completed = [], []
    for number in jobs:
        mine = {name: message for name, message in known.items() if name[0] == number and name[-2:] in flows.pairs}
        took = [message.arrived_s - message.sent_s for message in mine.values()]
        rates.append(_least_rate(mine))
        completed.append(np.percentile(took, (50.0, 95.0, 99.0, 100.0)).tolist() if took else [None] * 4)
    reduced = [_reduction_s(trace.messages[trace.messages["job"] == number]) for number in jobs]
    jain = jain_index(np.array([math.inf if rate is None else rate for rate in rates]))
    middle, p95, p99, worst = map(list, zip(*completed, strict=True))
    return Seen(rates, most_flows, jain, list(took_s), reduced, middle, worst, p95, p99)


def expected(plan: Plan, case: Case, predicted: Trace, iteration_s: Sequence[float]) -> tuple[Filled, Seen]:
    """What is known of a case that is not measured: `predicted` has one iteration of all jobs at work."""
    flows = flows_of(plan, case, predicted)
    on_routes, known = filled(plan, case, flows), typical(predicted.messages)
    return on_routes, seen(at_work(plan, case), flows, predicted, known, on_routes.most_flows, iteration_s)


def fairness_of(
    plan: Plan,
    case: Case,
    traces: tuple[Trace, Trace],
    traffic: Sequence[DirectionCounters],
    iteration_s: tuple[Sequence[float], Sequence[float]],
    counted_iterations: Sequence[int],
) -> CaseFairness:
    """The metric of a case that was trained.

    `traces` of all jobs: what is predicted of each measured iteration, or of one that stands for all, then measured
    without warm-up. `iteration_s` per job at work, predicted and measured; `traffic` per direction, network cards
    last, of so many `counted_iterations` of each job at work.
    """
    (predicted, measured), jobs = traces, at_work(plan, case)
    flows = flows_of(plan, case, predicted.of_iteration(int(predicted.iterations()[0])))
    found, expected = typical(measured.messages), typical(_known_of(predicted, measured))
    both = [name for name in expected if name in found]
    on_routes = filled(plan, case, flows)
    counted = _flows_counted(flows.problem, plan, case, traffic, counted_iterations)
    return CaseFairness(
        case.label,
        [plan.jobs[number].name for number in jobs],
        len(flows.pairs),
        plan.elephants_from or 0.0,
        on_routes,
        seen(jobs, flows, predicted, {name: expected[name] for name in both}, on_routes.most_flows, iteration_s[0]),
        seen(jobs, flows, measured, {name: found[name] for name in both}, counted, iteration_s[1]),
    )


def typical(messages: Table) -> dict[FlowKey, SentMessage]:
    """Every message whose arrival is known in at least half of its job's iterations, with its median times in these."""
    messages = messages[messages["kind"] != NOTICE]
    iterations = grouped({(job, number) for job, number in messages[["job", "iteration"]].tolist()})
    known = messages[~np.isnan(messages["arrived_s"])]
    of = grouped((name, index) for index, name in enumerate(_names(known)))
    return {
        name: SentMessage(*(float(np.median(known[column][mine])) for column in SentMessage._fields))
        for name, mine in of.items()
        if len(mine) >= len(iterations[name[0]]) / 2
    }


def _names(messages: Table) -> list[FlowKey]:
    return list(zip(*(messages[column].tolist() for column in _NAME), strict=True))


def _known_of(predicted: Trace, measured: Trace) -> Table:
    """What is predicted of messages, in the iterations in which their arrival was measured."""
    messages = predicted.messages
    if len(predicted.iterations()) == 1:
        return messages
    known = measured.messages[~np.isnan(measured.messages["arrived_s"])]
    in_these = set(zip(known["iteration"].tolist(), _names(known), strict=True))
    pairs = zip(messages["iteration"].tolist(), _names(messages), strict=True)
    # what arrives at a time that nobody knows stays, as an iteration in which the message was sent
    found = messages.copy()
    found["arrived_s"][[pair not in in_these for pair in pairs]] = np.nan
    return found


def same_order(cases: Sequence[CaseFairness], kind: Callable[[CaseFairness], Filled | Seen]) -> bool:
    """Whether measured rates put cases in the order of another `kind` of them by the two-layer metric, but for ties."""
    return not any(
        better(vector(one.measured), vector(other.measured), TIE)
        and better(vector(kind(other)), vector(kind(one)), TIE)
        for pair in comparable(cases)
        for one, other in (pair, pair[::-1])
    )


def comparable(cases: Sequence[CaseFairness]) -> list[tuple[CaseFairness, CaseFairness]]:
    """The pairs of cases in which the same jobs are at work: the metric says nothing of others."""
    return [(one, other) for one, other in combinations(cases, 2) if one.jobs == other.jobs]


def vector(one: Filled | Seen) -> tuple[float, ...]:
    """The jobs' rates, ascending; infinite where nothing limits a job, or is known of it."""
    return tuple(sorted(math.inf if rate is None else rate for rate in one.rates_bps))


def _least_rate(messages: Mapping[FlowKey, SentMessage]) -> float | None:
    """Of all pairs of ranks the least payload per second while something is under way, in bit/s."""
    flows = grouped((name[-2:], message) for name, message in messages.items())
    return min(map(_rate, flows.values()), default=None)


def _rate(messages: Sequence[SentMessage]) -> float:
    busy_s, until_s = 0.0, -math.inf
    for message in sorted(messages):
        busy_s += max(0.0, message.arrived_s - max(message.sent_s, until_s))
        until_s = max(until_s, message.arrived_s)
    return 8 * sum(message.payload_bytes for message in messages) / busy_s


def _reduction_s(messages: Table) -> float | None:
    """Median over iterations; None where nothing is reduced."""
    reduced = messages[np.isin(messages["kind"], (REDUCE_SCATTER, ALL_REDUCE))]
    over_s, took = np.fmax(reduced["arrived_s"], reduced["taken_s"]), []
    for iteration in sorted(set(reduced["iteration"].tolist())):
        mine = reduced["iteration"] == iteration
        took.append(float(over_s[mine].max() - reduced["sent_s"][mine].min()))
    return float(np.median(took)) if took else None


def _flows_counted(
    problem: RoutingProblem, plan: Plan, case: Case, traffic: Sequence[DirectionCounters], counted: Sequence[int]
) -> int:
    """The most flows on any direction of a link, as counters make it, of so many `counted` iterations of each job.

    What a direction carried beyond what the plan has for it beside these flows, over the mean of the flows that the
    plan has there (of all, where it has none).
    """
    nothing = np.zeros(problem.n_flows, np.int64)
    of_jobs = [sum(one.wire_bytes for one in planned_traffic(plan, case, [job])) for job in at_work(plan, case)]
    iterations = float(np.dot(of_jobs, counted)) / (sum(of_jobs) or 1.0) or 1.0
    beyond: Floats = np.array([one.counted_bytes - one.planned_bytes for one in traffic]) / iterations
    flows, sizes = flows_per_direction(problem, nothing), bytes_per_direction(problem, nothing)
    mean_bytes = float(problem.wire_bytes.mean()) if problem.n_flows else math.inf
    each = np.where(flows > 0, sizes / np.maximum(flows, 1), mean_bytes)
    most = ((beyond + sizes) / each)[: problem.n_links]
    return int(np.rint(most).max(initial=0))
