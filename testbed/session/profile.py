"""Without pacing, what actions and messages take on this machine: measured in runs of their own, before any case."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from testbed.judge import iterations
from testbed.judge.messages import message_times
from testbed.lab.machine_witness import Witness
from testbed.pipeline.ir import Action, Kind, Row, Schedule
from testbed.pipeline.memory import peak_in_flight
from testbed.plan.costs import predict
from testbed.plan.mesh import Mesh
from testbed.plan.plan import Job, Plan, Profile
from testbed.planning.resolve import generate
from testbed.progress import ProgressStep, Reporter
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.session.rounds import WitnessedRounds, unknown_task
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import Pacing
from testbed.trace.tables import KINDS, UNNOTICED_WAIT_S, Table, Trace, concatenate

WARM_UP, MEASURED_ITERATIONS = 3, 6
"""Of every schedule; the first iterations touch their memory for the first time."""

Samples = dict[tuple[str, int], list[float]]
"""(kind, pipeline rank) -> per iteration, the mean of what its actions took in s."""


class Profiled(NamedTuple):
    """A plan that knows what its actions and messages take, and what that was derived from."""

    plan: Plan
    document: dict[str, Any]
    """profile.json"""
    rows: Sequence[iterations.IterationRow]
    """Of its iterations: what the machine does to the job while nothing else is known of it."""
    spread: float
    """Of what an iteration under one schedule keeps a rank busy: interquartile range over median, the worst."""


class _Run(NamedTuple):
    """The measured iterations of one schedule."""

    traces: list[Trace]
    rows: list[iterations.IterationRow]


def profile(plan: Plan, loop: Loop, reporter: Reporter, witness: Witness) -> Profiled:
    """Measure a plan's only job, rank by rank, with all ranks at work as they are in the cases. Raises RunFailed.

    What an action takes depends on the memory that a rank goes through: what was just freed is still in the caches. So
    it is measured twice, with as few microbatches in flight as 1F1B holds, and with as many as any case may hold.
    """
    guess = Pacing(F="1 ms", I="1 ms", W="1 ms")  # only the order of actions matters here
    few = [generate(plan, ScheduleChoice(schedule=name), guess).schedule for name in ("zb-h1", "1f1b")]
    (job,) = plan.jobs
    many = [phases(few[0], _most_in_flight(plan, job), split=split) for split in (True, False)]
    total = (len(few) + len(many)) * (WARM_UP + MEASURED_ITERATIONS)
    with reporter.step("profiling the unpaced computation", total=total) as step:
        reporter.note(f"each iteration has to end within {deadlines.of_unknown_iteration()}")
        runs = {schedule: _train(job, loop, schedule, witness, step) for schedule in (*many, *few)}
    ranks, recompute = job.mesh.pp, job.workload.recompute
    samples = [_samples([runs[schedule].traces for schedule in schedules], job.mesh) for schedules in (few, many)]
    found = Profile(
        summary(samples[0], ranks, recompute=recompute),
        summary(samples[1], ranks, recompute=recompute),
        tuple(map(float, np.mean([peak_in_flight(schedule) for schedule in few], axis=0))),
        peak_in_flight(many[0]),
    )
    profiled = replace(plan, jobs=(replace(job, profile=found),))
    extra_s = _extra_s(profiled, few[1], runs[few[1]].traces)
    handover_s = max(0.0, plan.host_costs.handover_s + extra_s)
    profiled = replace(profiled, host_costs=replace(plan.host_costs, handover_s=handover_s))
    spread = max(_spread(run.traces) for run in runs.values())
    rows = [row for run in runs.values() for row in run.rows]
    return Profiled(profiled, _document(found, samples, handover_s) | {"spread": spread}, rows, spread)


def phases(like: Schedule, depth: int, *, split: bool) -> Schedule:
    """Every rank does `depth` forwards, then their backwards (split: all I, then all W), then the next."""
    kinds = (Kind.F, Kind.I, Kind.W) if split else (Kind.F, Kind.B)
    count = like.n_microbatches
    groups = [range(first, min(first + depth, count)) for first in range(0, count, depth)]

    def row(rank: int) -> Row:
        return tuple(Action(rank, kind, m) for group in groups for kind in kinds for m in group)

    name = f"{depth} at once, {'split' if split else 'fused'}"
    return Schedule(name, tuple(map(row, range(like.n_ranks))), like.stage_to_rank, count)


def _most_in_flight(plan: Plan, job: Job) -> int:
    workload = job.workload
    limits = [chosen.choice.memory or max(workload.memory_limits()) for case in plan.cases for chosen in case.jobs]
    return max(1, min(workload.microbatches, int(max(limits))))


def _train(job: Job, loop: Loop, schedule: Schedule, witness: Witness, step: ProgressStep) -> _Run:
    run = _Run([], [])
    task = unknown_task(job, schedule, WARM_UP + MEASURED_ITERATIONS)
    for finished in WitnessedRounds(loop, {0: task}, deadlines.of_unknown_iteration(), witness):
        run.traces.append(finished.trace(0))
        run.rows.append(finished.row(0, WARM_UP))
        step.advance()
    return _Run(run.traces[WARM_UP:], run.rows[WARM_UP:])


def _spread(traces: list[Trace]) -> float:
    worst = 0.0
    for rank in range(traces[0].n_ranks):
        busy_s = [float(durations(trace.actions[trace.actions["rank"] == rank]).sum()) for trace in traces]
        median_s, iqr_s = iterations.median_and_iqr(np.array(busy_s))
        worst = max(worst, iqr_s / median_s)
    return worst


def _samples(runs: list[list[Trace]], mesh: Mesh) -> Samples:
    """Of the first pipeline's ranks."""
    samples: Samples = defaultdict(list)
    for trace in (trace for run in runs for trace in run):
        for rank, number in enumerate(mesh.pipeline(0)):
            mine = trace.actions[trace.actions["rank"] == number]
            taken = durations(mine)
            for code, kind in enumerate(KINDS):
                if (of_kind := mine["kind"] == code).any():
                    samples[str(kind), rank].append(float(taken[of_kind].mean()))
    return samples


def durations(actions: Table) -> Table:
    """Seconds that each of one rank's actions kept it busy, in the order they were done.

    From the end of the one before it, or from when its input came if the rank waited for it, until its output was
    handed to the network.
    """
    waited = actions["ready_s"] - actions["reached_s"] > UNNOTICED_WAIT_S
    begins = actions["reached_s"].copy()
    begins[1:] = actions["end_s"][:-1]
    begins[waited] = actions["ready_s"][waited]
    result: Table = actions["end_s"] - begins
    return result


def summary(samples: Samples, ranks: int, *, recompute: bool) -> Pacing:
    """The median over iterations of each mean over an iteration's actions.

    An iteration takes the sum of its actions, rare slow ones included: their mean. An iteration that something else
    disturbed must not count: the median of the means.
    """
    found = {key: statistics.median(values) for key, values in samples.items()}

    def of(kind: str, rank: int) -> float:
        # the forward that a recomputing backward runs again is added to it by plan/costs.py
        again = found["F", rank] if recompute and kind in ("I", "B") else 0.0
        return max(0.0, found[kind, rank] - again)

    return Pacing(**{kind: [f"{of(kind, rank):.9f} s" for rank in range(ranks)] for kind in ("F", "I", "W", "B")})


def _extra_s(plan: Plan, schedule: Schedule, traces: list[Trace]) -> float:
    """What a message takes beyond the model's prediction, of those that were awaited; 0 where none was.

    Summed up as durations are. From the end of the action that made it: its hand-over to the network is in durations.
    """
    measured = concatenate(traces)
    measured.actions["computed_s"] = measured.actions["end_s"]
    predicted = predict(plan, ScheduleChoice(schedule="1f1b"), schedule)
    times = message_times(measured, predicted, paced=False)
    known, extra_s = ~np.isnan(times.extra_s), times.extra_s
    numbers = times.rows["iteration"]
    means = [float(extra_s[known & (numbers == number)].mean()) for number in sorted(set(numbers[known].tolist()))]
    return statistics.median(means) if means else 0.0


def _document(found: Profile, samples: list[Samples], handover_s: float) -> dict[str, Any]:
    parts = zip(("few", "many"), (found.few, found.many), (found.held_few, found.held_many), samples, strict=True)
    return {
        "handover_s": handover_s,
        **{
            name: {
                "in_flight": held,
                "pacing": {kind: [f"{time:.9f} s" for time in getattr(pacing, kind)] for kind in ("F", "I", "W", "B")},
                "mean_s_per_iteration": {f"{kind} rank {rank}": some for (kind, rank), some in sorted(spent.items())},
            }
            for name, pacing, held, spent in parts
        },
    }
