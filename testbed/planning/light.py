"""A plan whose jobs train smaller models, with the same bytes on every link: virtual time sees no arithmetic.

Three quarters of what a guest computes in a run is the arithmetic of its models, and none of that takes virtual time.
What a smaller model would change is written down first: the size of messages is that of the plan's own model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from testbed.errors import DoesNotFit
from testbed.plan.costs import stages_of
from testbed.plan.plan import Job, Plan
from testbed.planning.resolve import BEST
from testbed.planning.schedules import every_family
from testbed.spec.choice import ScheduleChoice
from testbed.spec.model import MODELS
from testbed.spec.workload import Workload

SEQUENCE = 8
"""Tokens per sample ..."""

WIDTH = 8
"""... width of a layer's input ..."""

WIDTH_PER_HEAD = 4
"""... and of one with attention, for each head, if that is more."""

_SPLIT, _LIGHTEST = "gpt", "linear"
"""Kinds of models that have a smaller one: with tensor ranks, and without."""


def lighter(plan: Plan, choices: Sequence[Sequence[ScheduleChoice]] = ()) -> tuple[Plan, list[str]]:
    """The plan with smaller models where they change no message, and a line on every job; for the virtual clock.

    What is trained without tensor ranks is a chain of linear layers: a microbatch takes a fifth of a GPT's time.

    `choices`: job by job, the schedules that a plan without cases is to have.
    """
    made = [_lighter(plan, number, choices[number] if choices else ()) for number in range(len(plan.jobs))]
    return replace(plan, jobs=tuple(job for job, _ in made)), [said for _, said in made]


def _lighter(plan: Plan, number: int, choices: Sequence[ScheduleChoice]) -> tuple[Job, str]:
    job, asked = plan.jobs[number], _with_parameters(plan, number)
    reason = _kept_because(asked)
    if not reason:
        made = replace(job, workload=_light(asked, _small(asked, _stages(plan, number, choices))))
        if made.workload.model != asked.model:
            return made, _said(made)
        reason = "it is as small"
    return job, f"{job.name}: its model stays as it is: {reason}"


def _stages(plan: Plan, number: int, choices: Sequence[ScheduleChoice]) -> list[int]:
    """How many stages a job has, schedule by schedule, of `best` with all that it may be.

    Each of its layers is one where that is not known.
    """
    job, found = plan.jobs[number], [len(case.jobs[number].stage_to_rank) for case in plan.cases]
    listed = every_family(choices) if any(choice.schedule == BEST for choice in choices) else choices
    for choice in () if found else listed:
        with suppress(DoesNotFit):  # is left out of the plan
            found.append(len(stages_of(job, choice)))
    if not found or (plan.adaptation is not None and plan.adaptation.stages):
        return [job.workload.model.layers]
    return found


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
    """Why a job keeps its model whatever its size; "" where it does not."""
    model = workload.model
    if model.kind not in (_SPLIT, _LIGHTEST):
        return f"nothing is known of what a smaller {model.kind} is"
    if workload.full_scale is not None:
        return "it stands for one at full scale"
    if workload.parallelism.data > 1 and workload.data_parallel.parameters is None:
        return "what its replicas exchange follows from it (data_parallel.parameters)"
    return ""


def _small(workload: Workload, stages: Sequence[int]) -> dict[str, Any]:
    """Fields of the smaller model, of a job with so many stages.

    A layer for every stage, but where tensor ranks exchange sums in each, or where layers cannot be shared out evenly
    before and after: as many as before. For tensor ranks as many heads, so as many tensors.
    """
    fields, most = workload.model.model_dump(), max(stages)
    even = all(fields["layers"] % count == 0 == most % count for count in stages)
    small = {"dtype": fields["dtype"], "sequence": min(fields["sequence"], SEQUENCE)}
    if workload.parallelism.tensor == 1:
        layers = most if even else fields["layers"]
        return small | {"kind": _LIGHTEST, "layers": layers, "d_model": min(fields["d_model"], WIDTH)}
    width = fields["heads"] * max(WIDTH_PER_HEAD, -(-WIDTH // fields["heads"]))
    small["d_model"] = min(fields["d_model"], width)
    if fields["d_ff"] is not None:
        small["d_ff"] = min(fields["d_ff"], 4 * small["d_model"])
    return fields | small


def _light(workload: Workload, small: dict[str, Any]) -> Workload:
    message = float(max(workload.tensor_bytes(), int(workload.message or 0)))
    model = MODELS[small["kind"]].model_validate(small)
    return workload.model_copy(update={"model": model, "message": message})


def _said(job: Job) -> str:
    model = job.workload.model.model_dump()
    size = f"{model['layers']} layers, width {model['d_model']}, sequence {model['sequence']}"
    return f"{job.name}: light model: {model['kind']}, {size}; messages kept"
