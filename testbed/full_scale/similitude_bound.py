"""What a lab cannot match of full scale, and the most that it makes of an iteration's time: an error bound with causes.

Boundary messages, slots and delays are alike by construction (similitude.py). Left are the sizes of collectives'
messages in segments with headers, super-packets, acknowledgements, waits that the engine's clock does not notice, and
the time to hand a message over. Each is put into the model in turn; what it changes counts with its magnitude, so that
the sum is no less than the difference between lab and full scale. Handing over counts on every message of the longest
chain of messages as well, since its time is a measured one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from testbed.full_scale import similitude
from testbed.full_scale.similitude import Scales
from testbed.model.simulate import makespan
from testbed.pipeline.collectives import Collective
from testbed.pipeline.depend import Message, consumed, produced
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.memory_bytes import full_scale_bytes
from testbed.plan.plan import Job, Plan

_STAGGER_S = 1e-7
"""Seconds at full scale by which ranks begin after each other: enough to tell whose message a link takes first, as in
the lab."""

CAUSES = ("collectives", "super-packets", "acknowledgements", "unnoticed waits", "handover")


@dataclass(frozen=True)
class FullScaleTime:
    """An iteration at full scale; all in seconds there, but for the factor."""

    lab_seconds: float
    """In the lab, per second at full scale."""
    ideal_s: float
    """By the model, with nothing that a lab adds."""
    predicted_s: float
    """Predicted for the lab, and scaled."""
    bound_s: float
    """The most by which the lab differs from full scale: the sum of `causes`."""
    causes: Mapping[str, float]
    memory: Sequence[Mapping[str, float]]
    """Per pipeline rank, bytes that each of its accelerators holds."""
    memory_limit: float
    """Bytes of HBM."""

    def as_json(self) -> dict[str, object]:
        """As in comparison.json."""
        return asdict(self)


def ideal(plan: Plan, job: Job, problem: Problem) -> Problem:
    """A problem of a job in lab seconds, with nothing in it that full scale has not; unchanged without full scale."""
    at = similitude.scales(job.workload, plan.host_costs.gloo_bytes)
    return problem if at is None else _chain(plan, job, problem, at)[0]


def full_scale_time(plan: Plan, job: Job, problem: Problem, schedule: Schedule) -> FullScaleTime | None:
    """What an iteration takes at full scale, and within what bound the lab tells it; None without full scale."""
    at = similitude.scales(job.workload, plan.host_costs.gloo_bytes)
    full, held = job.workload.full_scale, full_scale_bytes(job.workload, problem, schedule)
    if at is None or full is None or held is None:
        return None
    receives = job.workload.receives
    seconds = [makespan(step, schedule, receives=receives) for step in _chain(plan, job, problem, at)]
    differences = [abs(later - earlier) for earlier, later in pairwise(seconds)]
    each_s = problem.handover_s + problem.wake_s + problem.send_s
    each_s += problem.send_s_per_byte * max(problem.message_bytes, default=0.0)
    begun_s = max(problem.begins_s, default=0.0)
    differences[-1] = max(differences[-1], each_s * longest_chain(problem, schedule) + begun_s)
    causes = {cause: difference / at.seconds for cause, difference in zip(CAUSES, differences, strict=True)}
    bound_s = sum(causes.values())
    return FullScaleTime(
        lab_seconds=at.seconds,
        ideal_s=seconds[0] / at.seconds,
        predicted_s=seconds[-1] / at.seconds,
        bound_s=bound_s,
        causes=causes,
        memory=[part._asdict() for part in held],
        memory_limit=full.accelerator.memory,
    )


def full_scale_times(plan: Plan) -> dict[str, dict[str, object]]:
    """By case, what an iteration of a plan's only job takes at full scale; {} without full scale."""
    found = {}
    for case in plan.cases if len(plan.jobs) == 1 else ():
        schedule = costs.schedule_of(plan, case)
        if schedule is not None:
            at_full_scale = full_scale_time(plan, plan.jobs[0], costs.timed_problem(plan, case, schedule), schedule)
            if at_full_scale is not None:
                found[case.label] = at_full_scale.as_json()
    return found


def _chain(plan: Plan, job: Job, problem: Problem, at: Scales) -> list[Problem]:
    """From full scale to the lab's problem, one of CAUSES after the other; all in lab seconds."""
    plain = replace(
        problem,
        pipelines=tuple(pipeline._replace(piece_bytes=(), ack_bytes=()) for pipeline in problem.pipelines),
        handover_s=0.0,
        send_s=0.0,
        send_s_per_byte=0.0,
        wake_s=0.0,
        unnoticed_wait_s=0.0,
        begins_s=tuple(rank * _STAGGER_S * at.seconds for rank in range(len(problem.begins_s))),
    )
    first = replace(
        plain,
        all_gather=tuple(_at_full_scale(job, gather, at) for gather in problem.all_gather),
        reductions=tuple(_at_full_scale(job, reduction, at) for reduction in problem.reductions),
    )
    in_pieces = replace(plain, pipelines=tuple(pipeline._replace(ack_bytes=()) for pipeline in problem.pipelines))
    acknowledged = replace(in_pieces, pipelines=problem.pipelines)
    unnoticed = replace(acknowledged, unnoticed_wait_s=problem.unnoticed_wait_s)
    return [first, plain, in_pieces, acknowledged, unnoticed, problem]


def _at_full_scale(job: Job, collective: Collective, at: Scales) -> Collective:
    """A collective whose messages take what those at full scale take."""
    parameters = job.workload.data_parallel.parameters
    if not parameters:
        return collective
    share = at.wire_bytes * similitude.exchanged_bytes(job.workload) / parameters
    return collective._replace(
        wire_bytes={cells: share * payload for cells, payload in collective.payload_bytes.items()}, part_bytes={}
    )


def longest_chain(problem: Problem, schedule: Schedule) -> int:
    """The most messages between ranks that wait for each other, through the orders of ranks; collectives included."""
    rows, holder = schedule.rows, problem.stage_to_rank
    most, place = [0] * len(rows), [0] * len(rows)
    made: dict[Message, int] = {}
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while place[rank] < len(row):
                action = row[place[rank]]
                takes = consumed(action, schedule.n_stages)
                if takes is not None and takes not in made:
                    break
                if takes is not None:
                    most[rank] = max(most[rank], made[takes] + (holder[takes.stage] != rank))
                makes = produced(action, schedule.n_stages)
                if makes is not None:
                    made[makes] = most[rank]
                place[rank] += 1
                moved = True
    rings = [*problem.all_gather, *problem.reductions]
    return max(most, default=0) + 2 * max((_hops(ring) for ring in rings), default=0)


def _hops(collective: Collective) -> int:
    """The most messages of a collective that wait for each other."""
    depth: list[int] = []
    for step in collective.steps:
        depth.append(1 + max((depth[index] for index in step.after), default=0))
    return max(depth, default=0)
