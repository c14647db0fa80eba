"""A plan whose jobs train smaller models, with the same bytes on every link: virtual time sees no arithmetic.

Three quarters of what a guest computes in a run is the arithmetic of its models, and none of that takes virtual time.
What a smaller model would change is written down first: the size of messages is that of the plan's own model.
"""

from __future__ import annotations

from dataclasses import replace

from testbed.plan.plan import Job, Plan
from testbed.spec.workload import Workload

SEQUENCE = 8
"""Tokens per sample ..."""

WIDTH_PER_HEAD = 4
"""... and width of a layer's input, for each head."""

_LEAST_WIDTH = 8
_KIND = "gpt"


def lighter(plan: Plan) -> tuple[Plan, list[str]]:
    """The plan with smaller models where they change no message, and a line on every job; for the virtual clock."""
    jobs, said = [], []
    for number, job in enumerate(plan.jobs):
        asked = _with_parameters(plan, number)
        reason = _kept_because(asked)
        made = job if reason else replace(job, workload=_light(asked))
        jobs.append(made)
        said.append(f"{job.name}: its model stays as it is: {reason}" if reason else _said(job, made))
    return replace(plan, jobs=tuple(jobs)), said


def _with_parameters(plan: Plan, number: int) -> Workload:
    """The workload of a job, that says what replicas exchange where it follows from the model and is the same for all
    schedules: for as many stages."""
    workload = plan.jobs[number].workload
    cut = {len(case.jobs[number].stage_to_rank) for case in plan.cases}
    vary = plan.adaptation is not None and plan.adaptation.stages
    if workload.parallelism.data == 1 or workload.data_parallel.parameters is not None or len(cut) != 1 or vary:
        return workload
    (stages,) = cut
    parameters = workload.stage_bytes(stages) * stages / workload.parallelism.pipeline
    said = workload.data_parallel.model_copy(update={"parameters": parameters})
    made = workload.model_copy(update={"data_parallel": said})
    return made if made.stage_bytes(stages) == workload.stage_bytes(stages) else workload


def _kept_because(workload: Workload) -> str:
    """Why a job keeps its model; "" where it does not."""
    model = workload.model
    if model.kind != _KIND:
        return f"nothing is known of what a smaller {model.kind} is"
    if workload.full_scale is not None:
        return "it stands for one at full scale"
    if workload.parallelism.data > 1 and workload.data_parallel.parameters is None:
        return "what its replicas exchange follows from it (data_parallel.parameters)"
    return "it is as small" if model.model_dump().items() >= _small(workload).items() else ""


def _small(workload: Workload) -> dict[str, int]:
    """Fields of the smaller model: as many layers and heads, so as many tensors and sums."""
    fields = workload.model.model_dump()
    width = fields["heads"] * max(WIDTH_PER_HEAD, -(-_LEAST_WIDTH // fields["heads"]))
    return {"d_model": min(fields["d_model"], width), "sequence": min(fields["sequence"], SEQUENCE)}


def _light(workload: Workload) -> Workload:
    message = float(max(workload.tensor_bytes(), int(workload.message or 0)))
    known, small = workload.model.model_dump(), _small(workload)
    if known["d_ff"] is not None:
        small["d_ff"] = min(known["d_ff"], 4 * small["d_model"])
    model = type(workload.model).model_validate(known | small)
    return workload.model_copy(update={"model": model, "message": message})


def _said(job: Job, made: Job) -> str:
    before, after = job.workload.model.model_dump(), made.workload.model.model_dump()
    return (
        f"{job.name}: a light model, d_model {after['d_model']} and sequence {after['sequence']} instead of "
        f"{before['d_model']} and {before['sequence']}; messages have the bytes of the one asked for"
    )
