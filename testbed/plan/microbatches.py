"""The same batch in another number of microbatches: samples of each, slots, messages and memory limits follow.

What a microbatch takes and sends grows with its samples; what it costs beside that is not known here, so a smaller one
is never dearer per sample. Real ones are (sweep/reshape.py has a part of slots that stays).
"""

from __future__ import annotations

from dataclasses import replace

from testbed.errors import BadInput
from testbed.plan.plan import Case, Job, JobSchedule, Plan
from testbed.spec.workload import MAX_MICROBATCHES, MOST_MESSAGE_BYTES, PacedKind, Pacing, PerStage, Workload
from testbed.units import show_size


def samples(workload: Workload) -> int:
    """Of one pipeline in an iteration."""
    return workload.microbatches * workload.microbatch_size


def resized(workload: Workload, microbatches: int) -> Workload:
    """The workload whose pipelines cut as many samples into so many microbatches.

    Memory limits count microbatches: as many samples of them. Raises ValueError where samples would have to be cut.
    """
    if microbatches == workload.microbatches:
        return workload
    size, rest = divmod(samples(workload), microbatches)
    if rest or not size:
        raise ValueError(f"{samples(workload)} samples are no {microbatches} microbatches")
    larger = size / workload.microbatch_size
    changed = {
        "microbatches": microbatches,
        "microbatch_size": size,
        "memory": [limit / larger for limit in workload.memory_limits()],
        "message": None if workload.message is None else workload.message * larger,
        "pacing": None if workload.pacing is None else _pacing(workload, workload.pacing, larger),
    }
    return workload.model_copy(update=changed)


def _pacing(workload: Workload, pacing: Pacing, larger: float) -> Pacing:
    """Slots so many times as long; distributions keep their spread as a share of the median."""
    ranks = range(workload.parallelism.pipeline)

    def slots(kind: PacedKind) -> PerStage:
        medians = [pacing.of(kind, rank) * larger for rank in ranks]
        spread = pacing.spread(kind)
        return medians if spread is None else spread.about(medians)

    kinds: tuple[PacedKind, ...] = ("F", "I", "W", *(("B",) if pacing.B is not None else ()))
    return pacing.model_copy(update={kind: slots(kind) for kind in kinds})


def job_in(job: Job, chosen: JobSchedule) -> Job:
    """A job as it is in a case: with the microbatches that it has there."""
    if chosen.microbatches in (None, job.workload.microbatches):
        return job
    return replace(job, workload=resized(job.workload, chosen.microbatches))


def cuts_of(plan: Plan, case: Case) -> list[Case]:
    """A case, and the same in each number of microbatches that its job may go on with while it is trained."""
    counts = () if plan.adaptation is None else plan.adaptation.microbatches
    return [case, *(replace(case, jobs=(replace(case.jobs[0], microbatches=count),)) for count in counts)]


def memory_in(job: Job, chosen: JobSchedule) -> float | None:
    """The limit that a schedule has of its own, in microbatches as they are in a case; None where it has none."""
    memory, count = chosen.choice.memory, chosen.microbatches
    return memory if memory is None or count is None else memory * count / job.workload.microbatches


def require_microbatches(job: Job, microbatches: int, source: str, field: str) -> None:
    """Raises BadInput, naming `source` and `field`, for a number that a job's batch cannot be cut into."""
    workload, total = job.workload, samples(job.workload)
    if microbatches == workload.microbatches:
        return
    if workload.full_scale is not None:
        raise BadInput.of(source, field, microbatches, "a workload without full_scale, from which microbatches follow")
    if workload.pacing is None:
        raise BadInput.of(source, field, microbatches, "a job with times for F, I and W, which grow with microbatches")
    if not 1 <= microbatches <= MAX_MICROBATCHES or total % microbatches:
        expected = f"a divisor of {total}, the samples that a pipeline of {workload.name} has in an iteration"
        raise BadInput.of(source, field, microbatches, expected)
    made = resized(workload, microbatches)
    if made.message_bytes() > MOST_MESSAGE_BYTES:
        expected = f"more of them: messages of {show_size(made.message_bytes())} are too large"
        raise BadInput.of(source, field, microbatches, expected)
    if min(made.memory_limits()) < 1:
        raise BadInput.of(source, field, microbatches, "more of them: a rank has no memory for one so large")
