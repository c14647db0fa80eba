"""What every rank of a case holds, in bytes: predicted for the lab, and for full scale where the job stands for it."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.pipeline.collectives import Collective
from testbed.pipeline.depend import consumed, produced
from testbed.pipeline.ir import Row, Schedule
from testbed.pipeline.memory import RankBytes, peak_bytes, peaks
from testbed.pipeline.problem import Problem
from testbed.plan import counts
from testbed.plan.plan import Job
from testbed.spec.workload import Workload

PARITIES = 2
"""Messages of two iterations have buffers at a time: receives are posted one ahead."""

_MOMENTS = {"adamw": 2, "sgd": 1}
"""Numbers that an optimizer keeps of every parameter."""


def predicted_bytes(job: Job, problem: Problem, schedule: Schedule) -> list[RankBytes] | None:
    """Per rank of a job in the lab; None where the model does not say what it keeps of a microbatch."""
    workload, n_stages = job.workload, schedule.n_stages
    kept = {}
    for stage in range(n_stages):
        each = workload.model.activation_bytes(stage, n_stages, workload.microbatch_size, recompute=workload.recompute)
        if each is None:
            return None
        kept[stage] = (each[0], each[1])
    found = []
    for rank in job.mesh.ranks:
        replica, pipeline_rank, _ = job.mesh.coordinates(rank)
        row = schedule.rows[pipeline_rank]
        stages = [stage for stage, holder in enumerate(schedule.stage_to_rank) if holder == pipeline_rank]
        values, states = _parameters(job, stages, n_stages)
        messages = float(_messages(row, schedule, pipeline_rank) * workload.message_bytes())
        exchanged = [problem.gather(stage) for stage in stages] + [problem.reduction(stage) for stage in stages]
        messages += sum(_ends(one, replica) * one.payload_bytes for one in exchanged)
        found.append(RankBytes(peak_bytes(row, kept), values, values, states, PARITIES * messages))
    return found


def _parameters(job: Job, stages: Sequence[int], n_stages: int) -> tuple[float, float]:
    """Bytes of parameters (and of gradients), and of the optimizer's states, of which every replica has a shard."""
    workload, pipelines = job.workload, job.mesh.dp
    moments = _MOMENTS[workload.optimizer.kind]
    values = states = 0.0
    for stage in stages:
        own = -(-workload.model.stage_parameter_count(stage, n_stages) // pipelines)
        values += own * pipelines * workload.model.element_bytes
        states += moments * own * workload.model.element_bytes
    return values, states


def _messages(row: Row, schedule: Schedule, rank: int) -> int:
    """How many messages a rank takes from others and makes for them in an iteration."""
    holder, count = schedule.stage_to_rank, 0
    for action in row:
        takes, makes = consumed(action, schedule.n_stages), produced(action, schedule.n_stages)
        count += takes is not None and holder[takes.stage] != rank
        count += makes is not None and holder[makes.consumer] != rank
    return count


def _ends(one: Collective, member: int) -> int:
    """How many of a collective's messages a member sends or takes."""
    return sum(member in (step.source, step.target) for step in one.steps)


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
    return {
        "measured": None if measured is None else [one._asdict() for one in measured],
        "predicted": None if predicted is None else [one._asdict() for one in predicted],
        "activations_limit": None if limit is None else list(limit),
    }


def activation_limits(job: Job, problem: Problem, schedule: Schedule) -> list[float] | None:
    """Per rank of the lab, bytes of the microbatches that its limit allows, as kept after a forward without
    recomputation; None where the model does not say.
    """
    workload, n_stages = job.workload, schedule.n_stages
    limits = []
    for rank in job.mesh.ranks:
        pipeline_rank = job.mesh.coordinates(rank).pipeline_rank
        each = 0.0
        for stage in (stage for stage, holder in enumerate(schedule.stage_to_rank) if holder == pipeline_rank):
            one = workload.model.activation_bytes(stage, n_stages, workload.microbatch_size, recompute=False)
            if one is None:
                return None
            each += one[0]
        limits.append(problem.memory_limit[pipeline_rank] * each)
    return limits
