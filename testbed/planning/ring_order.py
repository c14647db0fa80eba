"""Rings that cross the wide area in a worse order than they could: replicas go round in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from testbed.errors import BadInput
from testbed.model.simulate import makespan
from testbed.plan import costs
from testbed.plan.exchange import sites_of
from testbed.plan.network_state import network_at, planned
from testbed.plan.plan import Case, Job, Plan
from testbed.thresholds import RING_ORDER_GAIN
from testbed.units import show_time

EVERY_ORDER = 5
"""Replicas up to which all orders are tried: 24 predictions at most."""


def of_rings(plan: Plan) -> list[str]:
    """A line for every job whose ring would be faster by more than RING_ORDER_GAIN with its replicas in another order.

    Judged alone, on default routes, under the job's first schedule that is made.
    """
    lines = []
    for number, job in enumerate(plan.jobs):
        case = next((scheduled for scheduled in plan.cases if scheduled.jobs[number].rows is not None), None)
        whole = case is not None and network_at(plan, case) == planned(plan.network)
        orders = list(_orders(plan, job)) if whole else []
        if case is None or not orders:
            continue
        now_s = _seconds(plan, case, number, range(job.mesh.dp))
        best_s, order = min((_seconds(plan, case, number, order), order) for order in orders)
        if best_s < now_s * (1 - RING_ORDER_GAIN):
            label = case.jobs[number].choice.label
            lines.append(
                f"{job.name}: replicas in another order around the ring, {list(order)}: {show_time(best_s)} instead of "
                f"{show_time(now_s)} under {label} (data_parallel.replicas in that order)"
            )
    return lines


def _orders(plan: Plan, job: Job) -> Iterator[tuple[int, ...]]:
    """Other orders of a ring's replicas, the first one first as a ring has no begin; none that is the same network.

    Every order of few replicas; of many the one that goes on to the nearest replica each time.
    """
    each, collective = job.mesh.dp, job.workload.data_parallel.collective
    if not collective.cyclic or collective.by_gloo or each <= 2:  # gloo's own is not modelled well enough for advice
        return
    per = job.mesh.pp * job.mesh.tp
    sites = [sites_of(job)[number * per : (number + 1) * per] for number in range(each)]
    tried = {tuple(sites)}
    if len(set(sites)) == 1:
        return
    for rest in permutations(range(1, each)) if each <= EVERY_ORDER else [_nearest(plan, sites)]:
        around = tuple(sites[number] for number in (0, *rest))
        if around not in tried:
            tried.add(around)
            yield (0, *rest)


def _nearest(plan: Plan, sites: Sequence[tuple[str, ...]]) -> tuple[int, ...]:
    """All replicas but the first, each followed by the nearest of the rest: by delay, summed over the ranks."""
    network = planned(plan.network)

    def away_s(one: int, other: int) -> float:
        pairs = zip(sites[one], sites[other], strict=True)
        return sum(network.links[index].delay_s for pair in pairs for index in network.routes.get(pair, ()))

    order, left = [0], set(range(1, len(sites)))
    while left:
        order.append(min(left, key=lambda other: (away_s(order[-1], other), other)))
        left.remove(order[-1])
    return tuple(order[1:])


def _seconds(plan: Plan, case: Case, number: int, order: Sequence[int]) -> float:
    """What the model says of a job alone with its replicas in this order; infinite where one cannot reach the next."""
    job, schedule = plan.jobs[number], costs.schedule_of(plan, case, job=number)
    assert schedule is not None
    per = job.mesh.pp * job.mesh.tp
    nodes = tuple(node for replica in order for node in job.nodes[replica * per : (replica + 1) * per])
    jobs = (*plan.jobs[:number], replace(job, nodes=nodes), *plan.jobs[number + 1 :])
    try:
        problem = costs.problem_for(replace(plan, jobs=jobs), schedule, job=number)
    except BadInput:
        return float("inf")
    return makespan(problem, schedule, receives=job.workload.receives)
