"""What the model says of jobs that run freely: every iteration of each, and how many each is to train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from testbed.model.free_iterations import FreeTimes, free_program, simulate_freely, times_freely
from testbed.model.lower import Load
from testbed.model.network import Floats
from testbed.model.orders import Orders
from testbed.model.simulate import compile_for
from testbed.pipeline.problem import Problem
from testbed.plan.events import Phase, at_work, own_phase
from testbed.plan.free_rounds import GAP_S
from testbed.plan.plan import Case, Plan
from testbed.planning.drawn_iterations import phase_of, slots_in
from testbed.planning.ties import FIRST_ORDERS, Range
from testbed.planning.training_prediction import TrainingPrediction


def own_phase_of(plan: Plan, case: Case, job: int) -> Phase:
    """The iterations of a job, by number, in a case: the rounds of all, or its own where jobs run freely."""
    return own_phase(plan, case, phase_of(plan, case), job)


def free_times(plan: Plan, case: Case, loads: Sequence[Load], iterations: int | None = None) -> FreeTimes:
    """When every iteration of the jobs at work begins and ends; `loads` are theirs (planning/prediction.py).

    So many of each job; None: as many as the plan has it train, warm-up included. Raises DeadlockError.
    """
    return times_freely(_iterations(plan, case, loads, _counts(plan, case, iterations)), GAP_S)


def mean_times_s(plan: Plan, case: Case, loads: Sequence[Load]) -> tuple[float, ...]:
    """Per job at work, the mean of what its iterations take that count. Raises as `free_times`."""
    times = free_times(plan, case, loads)
    return tuple(float(_measured(plan, case, times, index).mean()) for index in range(len(loads)))


def free_training(plan: Plan, case: Case, loads: Sequence[Load]) -> TrainingPrediction:
    """All iterations of the jobs at work, each with its own number. Raises as `free_times`."""
    iterations = _iterations(plan, case, loads, _counts(plan, case, None))
    trace, _ = simulate_freely(iterations, GAP_S)
    longest = max(len(job) for job in iterations)
    by_round = {number: [job[min(number, len(job) - 1)] for job in iterations] for number in range(longest)}
    return TrainingPrediction(trace, (), by_round)


def free_ranges(plan: Plan, case: Case, loads: Sequence[Load]) -> list[Range | None]:
    """Per job at work, the mean iteration times that it may have by who comes first; None where that is one.

    With traffic beside the jobs there is a range always: whether a datagram goes ahead of a message hangs on
    microseconds, and moves the job's later iterations against another's by up to the datagram's time on the wire.
    """
    made = free_program(_iterations(plan, case, loads, _counts(plan, case, None)), GAP_S)
    tie_s = max(load.problem.tie_s for load in loads)
    orders = Orders.of_program(made.program, made.names, made.tick_s, tie_s)
    beside = bool(loads[0].problem.streams)
    if not beside and not orders.tied():
        return [None] * len(loads)
    compile_for(FIRST_ORDERS * orders.events)
    found = [orders.predicted_s, *(order.ends_s for order in islice(orders.drawn(), FIRST_ORDERS))]
    times = [made.times_of_ends(ends_s) for ends_s in found]
    if beside:
        times += [made.drifting(seed, _datagram_s(loads[0].problem)) for seed in range(2 * FIRST_ORDERS)]
    ranges = list[Range | None]()
    for index in range(len(loads)):
        means = [float(_measured(plan, case, each, index).mean()) for each in times]
        over_orders = Range(min(means), max(means))
        ranges.append(over_orders if beside or over_orders.order_sensitive else None)
    return ranges


def _datagram_s(problem: Problem) -> float:
    """What a datagram of the traffic beside the jobs takes on the slowest link that any crosses."""
    return max(
        stream.wire_bytes * problem.links[link].seconds_per_byte for stream in problem.streams for link in stream.route
    )


def with_iterations(plan: Plan, loads_of: Sequence[Sequence[Load]]) -> Plan:
    """The plan of jobs that run freely with what each trains in each case: until all have trained as many iterations
    that count as their workloads ask for, so that nobody is left the network by others meanwhile.

    `loads_of` has the loads of every case.
    """
    cases = [
        replace(case, iterations=_until_all_are_done(plan, case, loads))
        for case, loads in zip(plan.cases, loads_of, strict=True)
    ]
    return replace(plan, cases=tuple(cases))


def _until_all_are_done(plan: Plan, case: Case, loads: Sequence[Load]) -> tuple[int, ...]:
    """Per job of the plan, how many iterations that count it has begun when the last one has what was asked for."""
    asked = [plan.jobs[number].workload for number in at_work(plan, case)]
    least = [workload.warmup + workload.iterations for workload in asked]
    counts = list(least)
    while True:
        times = times_freely(_iterations(plan, case, loads, counts), GAP_S)
        until_s = max(times.ends_s[job][count - 1] for job, count in enumerate(least))
        short = [job for job, ends_s in enumerate(times.ends_s) if ends_s[-1] < until_s]
        if not short:
            break
        for job in short:
            missing_s = until_s - times.ends_s[job][-1]
            counts[job] += max(1, int(np.ceil(missing_s / (times.times_s(job).mean() + GAP_S))))
    begun = [int(np.searchsorted(begins_s, until_s, side="left")) for begins_s in times.begins_s]
    found = [job.workload.iterations for job in plan.jobs]
    for number, count, workload in zip(at_work(plan, case), begun, asked, strict=True):
        found[number] = max(found[number], count - workload.warmup)
    return tuple(found)


def _counts(plan: Plan, case: Case, iterations: int | None) -> list[int]:
    working = at_work(plan, case)
    if iterations is not None:
        return [iterations] * len(working)
    return [len(own_phase_of(plan, case, number).rounds) for number in working]


def _measured(plan: Plan, case: Case, times: FreeTimes, index: int) -> Floats:
    """What a job's iterations take that count."""
    number = at_work(plan, case)[index]
    found: Floats = times.times_s(index)[own_phase_of(plan, case, number).measured]
    return found


def _iterations(plan: Plan, case: Case, loads: Sequence[Load], counts: Sequence[int]) -> list[list[Load]]:
    """Per job, the loads of so many iterations."""
    found: list[list[Load]] = [[] for _ in loads]
    for number in range(max(counts)):
        slots = slots_in(plan, case, loads, number)
        for job, (load, count) in enumerate(zip(loads, counts, strict=True)):
            if number < count:
                found[job].append(load._replace(slots_s=slots[job]))
    return found
