"""What every rank of a case holds, in bytes: predicted for the lab, and for full scale where the job stands for it."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from itertools import pairwise

from testbed.pipeline.collectives import CollectiveMessage
from testbed.pipeline.depend import produced
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import RankBytes, peak_bytes, peaks
from testbed.pipeline.problem import Problem
from testbed.pipeline.receive_buffers import Numbers, own_buffers, shared_buffers
from testbed.plan import counts
from testbed.plan.events import swaps
from testbed.plan.exchange import exchange_at
from testbed.plan.microbatches import cuts_of, job_in
from testbed.plan.moved_weights import MOMENTS
from testbed.plan.plan import Case, Job, JobSchedule, Plan
from testbed.plan.tensor_exchanges import buffer_bytes as exchange_buffer_bytes
from testbed.plan.tensor_exchanges import tensor_exchanges
from testbed.spec.workload import Workload
from testbed.thresholds import OVER_LIMIT

PARITIES = 2
"""Messages between replicas have buffers for two iterations: receives are posted one ahead."""


def predicted_bytes(job: Job, schedule: Schedule, *, swaps: bool) -> list[RankBytes] | None:
    """Per rank of a job in the lab; None where the model does not say what it keeps of a microbatch.

    `swaps`: the training may go on with another schedule, for which every message has a buffer of its own.
    """
    workload, n_stages = job.workload, schedule.n_stages
    kept = _kept(job, schedule, recompute=workload.recompute)
    if kept is None:
        return None
    numbers, found = own_buffers(schedule) if swaps else shared_buffers(schedule), []
    for rank in job.mesh.ranks:
        replica, pipeline_rank, _ = job.mesh.coordinates(rank)
        row = schedule.rows[pipeline_rank]
        stages = [stage for stage, holder in enumerate(schedule.stage_to_rank) if holder == pipeline_rank]
        values, states, exchanged = _parameters(job, pipeline_rank, replica, stages, n_stages)
        messages = float(message_bytes(job, schedule, pipeline_rank, numbers[pipeline_rank]))
        exchanges = tensor_exchanges(job, schedule.stage_to_rank, pipeline_rank)
        summed = exchange_buffer_bytes(exchanges, job.mesh.tp)
        found.append(RankBytes(peak_bytes(row, kept), values, values, states, messages + exchanged + summed))
    return found


def _kept(job: Job, schedule: Schedule, *, recompute: bool) -> dict[int, tuple[float, float]] | None:
    """Per stage, bytes of a microbatch after its F and after its I; None where the model does not say.

    What comes from another rank stays in its buffer; but tensor ranks gather their parts of it into memory of its own.
    """
    workload, holder, last = job.workload, schedule.stage_to_rank, schedule.n_stages - 1
    gathered = workload.tensor_bytes() if job.mesh.tp > 1 else 0
    found = {}
    for stage, rank in enumerate(holder):
        each = workload.model.activation_bytes(
            stage, schedule.n_stages, workload.microbatch_size, recompute=recompute, degree=job.mesh.tp
        )
        if each is None:
            return None
        below, above = stage > 0 and holder[stage - 1] != rank, stage < last and holder[stage + 1] != rank
        found[stage] = (each[0] + below * gathered, each[1] + above * gathered)
    return found


def _parameters(
    job: Job, pipeline_rank: int, replica: int, stages: Sequence[int], n_stages: int
) -> tuple[float, float, float]:
    """Bytes of parameters (and of gradients), of the optimizer's states, and of what replicas exchange them through."""
    workload, element = job.workload, job.workload.model.element_bytes
    moments, exchange = MOMENTS[workload.optimizer.kind], exchange_at(job, pipeline_rank)
    values = states = buffers = 0.0
    for stage in stages:
        parameters = workload.model.rank_parameter_count(stage, n_stages, workload.parallelism.tensor)
        if job.mesh.dp == 1:
            values += element * parameters
            states += moments * element * parameters
            continue
        cell = element * exchange.cell_size(parameters)
        sent = workload.cell_bytes(n_stages, exchange.n_cells)
        values += exchange.n_cells * cell
        own = sum(end - begin for begin, end in exchange.shards[replica]) if exchange.gather else exchange.n_cells
        states += moments * own * cell
        if workload.data_parallel.collective.by_gloo:
            buffers += exchange.n_cells * sent
        else:
            buffers += sum(_exchanged(steps, replica, cell, sent) for steps in (exchange.gather, exchange.reduction))
    return values, states, buffers


def _exchanged(steps: Sequence[CollectiveMessage], member: int, cell: int, sent: int) -> float:
    """Bytes of a member's buffers of one collective; cells of `cell` bytes are sent in `sent`, padding included.

    What is sent shares its padding: of equal messages the last one has it.
    """
    mine = [step for step in steps if member in (step.source, step.target)]
    total = 0
    for cells in {step.n_cells for step in mine}:
        leaving = sum(step.source == member for step in mine if step.n_cells == cells)
        coming = sum(step.target == member for step in mine if step.n_cells == cells)
        total += max(0, leaving - 1) * cells * cell + cells * sent + PARITIES * coming * cells * sent
    return float(total)


def message_bytes(job: Job, schedule: Schedule, rank: int, numbers: Numbers, *, padded: bool = True) -> int:
    """What a pipeline rank keeps of messages between stages, where those that come in have buffers of these numbers.

    What it sends shares its padding: of all its messages the last one has it. Not `padded`: without what pads them.
    """
    holder, size = schedule.stage_to_rank, _buffer(job, padded=padded)
    makes = (produced(action, schedule.n_stages) for action in schedule.rows[rank])
    leaving = sum(made is not None and holder[made.consumer] != rank for made in makes)
    return (max(numbers, default=-1) + 1) * size + (max(0, leaving - 1) * _own(job) + size if leaving else 0)


def _own(job: Job) -> int:
    """Bytes of a message between stages that a tensor rank computes; the rest pads it."""
    element = job.workload.model.element_bytes
    return element * math.ceil(job.workload.tensor_bytes() / element / job.mesh.tp)


def _buffer(job: Job, *, padded: bool) -> int:
    """Memory that a message between stages takes; not `padded`: the pages that are written."""
    size = job.workload.message_bytes()
    return size if padded else min(size, -(-_own(job) // mmap.PAGESIZE) * mmap.PAGESIZE)


def buffer_bytes(plan: Plan, *, padded: bool = True) -> int:
    """What all ranks keep of messages in the case that needs most, in each number of microbatches that it may have.

    Not `padded`: where what pads messages between stages takes no memory (train/buffers.py).
    """
    jobs, every = range(len(plan.jobs)), [cut for case in plan.cases for cut in cuts_of(plan, case)]
    return max((sum(_of_job(plan, case, number, padded=padded) for number in jobs) for case in every), default=0)


def _of_job(plan: Plan, case: Case, number: int, *, padded: bool) -> int:
    chosen = case.jobs[number]
    job, rows = job_in(plan.jobs[number], chosen), chosen.rows
    if rows is None or plan.adaptation is not None:  # at most: every message by itself, at both ends
        boundaries = sum(a != b for a, b in pairwise(chosen.stage_to_rank))
        held = 4 * boundaries * job.workload.microbatches * _buffer(job, padded=padded)
    else:
        schedule = Schedule(case.label, rows, chosen.stage_to_rank, job.workload.microbatches)
        numbers = own_buffers(schedule) if swaps(plan) else shared_buffers(schedule)
        held = sum(message_bytes(job, schedule, rank, mine, padded=padded) for rank, mine in enumerate(numbers))
    return job.mesh.dp * job.mesh.tp * held + job.mesh.tp * _exchange_bytes(job, chosen)


def _exchange_bytes(job: Job, chosen: JobSchedule) -> int:
    """What all replicas keep of messages to each other: buffers to receive into for two iterations, one to send from.

    Those to send from share their padding; gloo's own all-reduce works in one buffer, and receives into another.
    """
    if job.mesh.dp == 1:
        return 0
    held, own = 0, not job.workload.data_parallel.collective.by_gloo
    for rank in chosen.stage_to_rank:
        exchange = exchange_at(job, rank)
        cell = job.workload.cell_bytes(len(chosen.stage_to_rank), exchange.n_cells)
        steps = (*exchange.gather, *exchange.reduction) if own else ()
        held += cell * sum(2 * step.n_cells for step in steps)
        held += cell * job.mesh.dp * (max(step.n_cells for step in steps) if steps else 2 * exchange.n_cells)
    return held


def full_scale_bytes(workload: Workload, problem: Problem, schedule: Schedule) -> list[RankBytes] | None:
    """Per pipeline rank, what each of its accelerators holds at full scale; None without full scale."""
    full, ranks = workload.full_scale, workload.parallelism.pipeline
    if full is None:
        return None
    found = []
    for rank, most in enumerate(peaks(schedule, problem)):
        held = counts.rank_bytes(full, rank, ranks)
        activations = most * held.activation
        found.append(RankBytes(activations, held.parameters, held.gradients, held.optimizer, held.buffers))
    return found


def as_json(
    measured: Sequence[RankBytes] | None, predicted: Sequence[RankBytes] | None, limit: Sequence[float] | None
) -> dict[str, object]:
    """As in comparison.json: lists by rank; null for what nobody knows."""
    over = None
    if limit is not None and (known := [ranks for ranks in (measured, predicted) if ranks is not None]):
        over = [max(each[rank].activations for each in known) / most - 1 for rank, most in enumerate(limit)]
    return {
        "measured": None if measured is None else [part._asdict() for part in measured],
        "predicted": None if predicted is None else [part._asdict() for part in predicted],
        "activations_limit": None if limit is None else list(limit),
        "over_limit": None if over is None else [share if share > OVER_LIMIT else 0.0 for share in over],
    }


def activation_limits(job: Job, problem: Problem, schedule: Schedule) -> list[float] | None:
    """Per rank of the lab, bytes of the microbatches that its limit allows, as kept after a forward without
    recomputation; None where the model does not say.
    """
    kept = _kept(job, schedule, recompute=False)
    if kept is None:
        return None
    limits = []
    for rank in job.mesh.ranks:
        pipeline_rank = job.mesh.coordinates(rank).pipeline_rank
        each = sum(kept[stage][0] for stage, holder in enumerate(schedule.stage_to_rank) if holder == pipeline_rank)
        limits.append(problem.memory_limit[pipeline_rank] * each)
    return limits
