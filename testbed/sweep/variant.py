"""What a job could become with as many accelerators and tokens (split, microbatch, memory limit), and what it takes.

A variant has a workload and a plan of its own; a forecast is one schedule of it on the routes of one policy. Seconds
are those of full scale where the workload stands for a job there, else of the lab.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from testbed.errors import BadInput, DoesNotFit, Interrupted, RunFailed
from testbed.full_scale.similitude import lab_seconds
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import TOLERANCE, peaks
from testbed.pipeline.problem import Problem
from testbed.pipeline.validate import OverMemory
from testbed.plan import costs, counts
from testbed.plan.memory_bytes import full_scale_bytes
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import iteration_times, ranges_of_case
from testbed.planning.resolve import require_room_for_parameters, with_cases
from testbed.planning.schedules import candidates
from testbed.planning.ties import Range, worst_s
from testbed.routing.apply import with_policies
from testbed.routing.policies import PolicyChoice
from testbed.schedule.registry import family_of, generate_choice
from testbed.search.incumbent import Watch
from testbed.spec.choice import ScheduleChoice
from testbed.spec.topology import Topology
from testbed.spec.workload import MOST_MEMORY, Workload
from testbed.sweep.accelerator_split import Split, resplit, split_of
from testbed.sweep.reshape import Shape, impossible, microbatches_of, reshaped, shape_of
from testbed.units import SIZE, parse, show_size


class MemoryLimit(NamedTuple):
    """What a rank may hold: one of the two."""

    in_flight: float | None = None
    """Microbatches of the workload's own size and split."""
    hbm_bytes: float | None = None
    """Of an accelerator at full scale."""

    def __str__(self) -> str:
        return show_size(self.hbm_bytes) if self.hbm_bytes is not None else f"{self.in_flight:g} in flight"


def memory_limit(text: str) -> MemoryLimit:
    """What `--memory-limit` says: a number of microbatches, or a size of HBM. Raises BadInput."""
    try:
        number = float(text)
    except ValueError:
        try:
            return MemoryLimit(hbm_bytes=parse(text, SIZE, "a size"))
        except ValueError as error:
            expected = f"microbatches in flight such as 8, or HBM: {error}"
            raise BadInput.of("--memory-limit", "option", text, expected) from error
    if not 1 <= number <= MOST_MEMORY:
        raise BadInput.of("--memory-limit", "option", text, f"from 1 to {MOST_MEMORY:g} microbatches in flight")
    return MemoryLimit(number)


class Variant(NamedTuple):
    """One way to run the job."""

    split: Split
    microbatch_size: int
    memory: MemoryLimit | None = None
    """None: as the workload says."""

    def __str__(self) -> str:
        limit = "" if self.memory is None else f", memory {self.memory}"
        return f"{self.split}, microbatch {self.microbatch_size}{limit}"


def given_variant(workload: Workload) -> Variant:
    """The workload as it is."""
    return Variant(split_of(workload), size_of(workload))


def size_of(workload: Workload) -> int:
    """Samples of a microbatch, at full scale where the workload has one."""
    return workload.microbatch_size if workload.full_scale is None else workload.full_scale.microbatch_size


def varied(topology: Topology, workload: Workload, variant: Variant) -> Workload:
    """The workload as a variant of it. Raises BadInput where that cannot be."""
    made = workload if variant.memory is None else _limited(workload, variant.memory)
    if variant.microbatch_size != size_of(workload):
        shape = Shape(variant.microbatch_size, shape_of(workload).sequence)
        if (reason := impossible(made, shape)) is not None:
            raise BadInput.of(workload.name, "microbatch size", variant.microbatch_size, f"another one: {reason}")
        made = reshaped(made, shape)
    return resplit(topology, made, variant.split)


def _limited(workload: Workload, limit: MemoryLimit) -> Workload:
    """With this limit for all schedules, whatever the workload gives to single ones."""
    if limit.hbm_bytes is not None:
        return with_hbm(workload, limit.hbm_bytes)
    schedules = [choice.model_copy(update={"memory": None}) for choice in workload.schedules]
    return workload.model_copy(update={"memory": limit.in_flight, "schedules": schedules})


def with_hbm(workload: Workload, size_bytes: float) -> Workload:
    """A workload at full scale on accelerators with so much memory."""
    full = workload.full_scale
    assert full is not None  # asked for by who calls
    accelerator = full.accelerator.model_copy(update={"memory": size_bytes})
    return workload.model_copy(update={"full_scale": full.model_copy(update={"accelerator": accelerator})})


# --- what it takes -------------------------------------------------------------------------------


class MemoryUse(NamedTuple):
    """Memory on the rank that is nearest to its limit, or furthest beyond it."""

    used: float
    limit: float
    in_bytes: bool
    """HBM at full scale; else microbatches in flight."""

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.used / self.limit

    def words(self) -> str:
        """As "71.2 GB of 64 GB"."""
        if self.in_bytes:
            return f"{show_size(self.used)} of {show_size(self.limit)}"
        return f"{self.used:.4g} of {self.limit:.4g} in flight"


@dataclass(frozen=True)
class Forecast:
    """A variant under one schedule and one policy, as predicted."""

    variant: Variant
    choice: ScheduleChoice
    policy: str | None
    """None: default routes."""
    plan: Plan
    """What would be run: its one case."""
    seconds: float
    """Of an iteration."""
    predicted_range: Range | None
    """What that may be by who comes first of messages that meet; None where it is one time."""
    held: MemoryUse
    remarks: tuple[str, ...] = ()

    @property
    def worst_s(self) -> float:
        """The most that it may take: what forecasts are compared by."""
        return worst_s(self.seconds, self.predicted_range)

    @property
    def name(self) -> str:
        """Schedule, and routing policy where there is one."""
        return self.choice.label if self.policy is None else f"{self.choice.label} on {self.policy}"

    @property
    def workload(self) -> Workload:
        """Of the variant."""
        return self.plan.jobs[0].workload

    @property
    def tokens_per_s(self) -> float | None:
        """By the most that an iteration may take; None for a model without a sequence length."""
        tokens = tokens_of(self.workload)
        return None if tokens is None else tokens / self.worst_s

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilization: see `model_flop`; None without full scale."""
        full = self.workload.full_scale
        if full is None:
            return None
        peak = self.variant.split.accelerators * full.accelerator.flops
        return model_flop(self.workload) / (self.worst_s * peak)


class Unfit(NamedTuple):
    """A schedule of a variant, or all of them, for which memory does not suffice, or which cannot be made for it."""

    variant: Variant
    schedule: str | None
    """None: any."""
    held: MemoryUse | None
    """What it would hold; None where that is not known, or memory is not the reason."""
    reason: str
    over_memory: bool = False
    """Whether more memory is all that it lacks."""
    policy: str | None = None
    """Which chose no routes for it; None: memory or the schedule is the reason."""


def tokens_of(workload: Workload) -> int | None:
    """Of an iteration, over all pipelines; None for a model without a sequence length."""
    full = workload.full_scale
    if full is not None:
        return full.global_batch * full.sequence
    sequence = getattr(workload.model, "sequence", None)
    samples = workload.microbatches * workload.microbatch_size * workload.parallelism.data
    return samples * sequence if isinstance(sequence, int) else None


def model_flop(workload: Workload) -> float:
    """Of an iteration of a job at full scale: three times the forward's, since a backward takes twice as many, and
    nothing for what is computed again (Chowdhery et al. 2022, PaLM, appendix B; here with causal attention).
    """
    full, ranks = workload.full_scale, workload.parallelism.pipeline
    assert full is not None  # asked for by who calls
    forward = sum(counts.stage_flop(full, rank, ranks).forward for rank in range(ranks))
    return 3 * forward * microbatches_of(workload) * full.data


def least_held(workload: Workload) -> MemoryUse | None:
    """What the fullest rank holds with one microbatch in flight; None without full scale."""
    full, ranks = workload.full_scale, workload.parallelism.pipeline
    if full is None:
        return None
    held = [counts.rank_bytes(full, rank, ranks) for rank in range(ranks)]
    return MemoryUse(max(each.static + each.activation for each in held), full.accelerator.memory, in_bytes=True)


def held_by(plan: Plan, problem: Problem, schedule: Schedule) -> MemoryUse:
    """What the rank holds that is nearest to its limit, or furthest beyond it: of HBM at full scale.

    A limit in microbatches that is passed while HBM has room is the one that counts.
    """
    rows = zip(peaks(schedule, problem), problem.memory_limit, strict=True)
    used, limit = max(rows, key=lambda row: row[0] / row[1])
    in_flight = MemoryUse(used, limit, in_bytes=False)
    workload = plan.jobs[0].workload
    of_ranks, full = full_scale_bytes(workload, problem, schedule), workload.full_scale
    if of_ranks is None or full is None:
        return in_flight
    of_hbm = MemoryUse(max(sum(each) for each in of_ranks), full.accelerator.memory, in_bytes=True)
    return in_flight if in_flight.share > 1 + TOLERANCE and of_hbm.share <= 1 else of_hbm


def forecast(
    variant: Variant,
    plan: Plan,
    choices: Sequence[ScheduleChoice],
    policies: Sequence[PolicyChoice | None] = (None,),
    watch: Watch | None = None,
) -> tuple[list[Forecast], list[Unfit]]:
    """A variant's plan under every choice and policy, and what does not fit; routes that an earlier policy has chosen
    for a schedule are no other forecast. Raises BadInput.
    """
    found = candidates(plan, choices, watch, judge=False)
    unfit = [
        _over_memory(variant, plan, choice, found.left_out[choice.label])
        if choice.label in found.over_memory
        else Unfit(variant, choice.label, None, found.left_out[choice.label])
        for choice in choices
        if choice.label in found.left_out
    ]
    forecasts: list[Forecast] = []
    if found.found:
        fitting = [candidate.choice for candidate in found.found]
        made = with_cases(plan, fitting, {one.choice.label: one.generated for one in found.found})
        require_room_for_parameters(made)
        seen = set()
        for policy in policies:
            label = None if policy is None else policy.label
            try:
                routed = made if policy is None else with_policies(made, [policy])[0]
            except Interrupted:
                raise
            except (DoesNotFit, RunFailed) as error:  # too many flows for it, or too little time
                unfit.append(Unfit(variant, None, None, str(error), policy=label))
                continue
            fresh = [case for case in routed.cases if (case.jobs[0].choice.label, case.routes) not in seen]
            seen |= {(case.jobs[0].choice.label, case.routes) for case in fresh}
            forecasts += [_forecast(variant, routed, case, label) for case in fresh]
    return forecasts, unfit


def _forecast(variant: Variant, plan: Plan, case: Case, policy: str | None) -> Forecast:
    (seconds,), (predicted_range,) = iteration_times(plan, case), ranges_of_case(plan, case)
    schedule = costs.schedule_of(plan, case)
    assert schedule is not None  # iteration_times has raised otherwise
    problem, factor = costs.timed_problem(plan, case, schedule), 1 / (lab_seconds(plan) or 1.0)
    held, chosen = held_by(plan, problem, schedule), case.jobs[0]
    span = predicted_range and predicted_range.scaled(factor)
    alone = replace(plan, cases=(case,), left_out={})
    return Forecast(variant, chosen.choice, policy, alone, seconds * factor, span, held, chosen.remarks)


def _over_memory(variant: Variant, plan: Plan, choice: ScheduleChoice, reason: str) -> Unfit:
    """With what the schedule would hold: one that uses what there is, with a little more than there is; of a solver's
    nobody knows.
    """
    known, problem = family_of(choice), costs.problem(plan, choice)
    if known.solver:
        return Unfit(variant, choice.label, None, reason, over_memory=True)
    most, least = float(problem.n_microbatches), math.floor(min(problem.memory_limit))
    limits = [min(most, float(least + 2**power)) for power in range(13)] if known.uses_spare_memory else [most]
    for limit in dict.fromkeys(limits):
        try:
            schedule = generate_choice(choice, problem.with_memory(limit)).schedule
        except OverMemory:
            continue
        return Unfit(variant, choice.label, held_by(plan, problem, schedule), reason, over_memory=True)
    return Unfit(variant, choice.label, None, reason, over_memory=True)
