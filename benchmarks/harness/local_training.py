"""Real workers on this machine, connected over loopback, without containers; and how far they are from one process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import RankBytes
from testbed.pipeline.problem import Problem
from testbed.pipeline.receive_buffers import come_in_order, shared_buffers
from testbed.plan import costs
from testbed.plan.exchange import sites_of
from testbed.plan.memory_bytes import predicted_bytes
from testbed.plan.plan import Plan
from testbed.planning.resolve import generate
from testbed.schedule.registry import FAMILIES
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.spec.choice import ScheduleChoice
from testbed.train.assignment import IterationRecord, TimedSchedule, TrainingTask
from testbed.train.launcher import Launcher
from testbed.train.protocol import WorkerPlace, WorldSpec
from testbed.train.reference import Reference

torch.set_num_threads(1)  # models are small: a second thread only spins, beside whoever else is at work

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
"""Relative, of losses, gradients and their norms."""
OPTIMIZERS = {"float64": "{kind: adamw}", "float32": "{kind: sgd, learning_rate: 0.1}"}
"""AdamW divides by the gradient's own size, which turns float32's rounding of a sum in another order into steps of its
own; so it is tested in float64."""
MEMORY_TOLERANCE = RankBytes(activations=0.01, parameters=0.0, gradients=0.0, optimizer=0.01, buffers=0.0)
"""Relative. Optimizer: AdamW keeps a number of steps for every parameter, too."""
WITH_PARTS = MEMORY_TOLERANCE._replace(activations=0.04)
"""Where actions are parts of a stage's layers, which are counted as equal."""
SOLVER_LIMIT_S = 1.0


class Difference(NamedTuple):
    """The largest relative differences from one process."""

    losses: float
    gradients: float
    norms: float
    """Of the gradients of each layer, put together from what every rank counts."""

    @property
    def worst(self) -> float:
        """Of the three."""
        return max(self)


class Scheduled(NamedTuple):
    """A plan of one job with one schedule."""

    plan: Plan
    schedule: Schedule
    problem: Problem


NO_SWAPS: Mapping[int, Scheduled] = MappingProxyType({})


class Trained(NamedTuple):
    """What ranks had at the end, put together."""

    losses: list[float]
    """Per iteration."""
    gradients: dict[str, np.ndarray[Any, Any]]
    """Of the last iteration."""
    norms: list[list[float]]
    """Of every iteration, layer by layer."""
    memory: list[RankBytes]
    """Per rank, counted in the first iteration."""
    records: list[IterationRecord]
    """Per rank, of the last iteration."""


@contextmanager
def workers(ranks: int, directory: Path, patience: Deadline, streams: int = 1) -> Iterator[Loop]:
    """So many workers, ready for jobs with so many streams; `directory`, which exists, gets their logs."""
    with Launcher() as launcher:
        world = WorldSpec(
            places=tuple(WorkerPlace(None, "lo") for _ in range(ranks)),
            store=f"file://{directory}/store",
            timeout_s=patience.seconds,
            warmup_bytes=1000,
            neighbours=tuple((rank, rank + 1) for rank in range(ranks - 1)),
            logs=str(directory),
            streams=streams,
        )
        launcher.imported()
        loop = Loop([launcher])
        loop.start([world], patience)
        yield loop


def scheduled(plan: Plan, choice: str | ScheduleChoice) -> Scheduled:
    """A schedule for a plan. Raises BadInput where the family has none for so many ranks."""
    if isinstance(choice, str):
        choice = ScheduleChoice(schedule=choice, time_limit_s=SOLVER_LIMIT_S if FAMILIES[choice].solver else None)
    return Scheduled(plan, generate(plan, choice).schedule, costs.problem(plan, choice))


def timed(case: Scheduled) -> TimedSchedule:
    """A schedule with its slots."""
    durations = tuple(tuple(case.problem.duration(action) for action in row) for row in case.schedule.rows)
    return TimedSchedule(case.schedule, durations, case.problem.begins_s)


def task_of(case: Scheduled, iterations: int, *, swaps: bool = False) -> TrainingTask:
    """What workers are told to train: gradients are kept, memory is counted."""
    job = case.plan.jobs[0]
    return TrainingTask(
        timed(case),
        job.workload,
        iterations,
        keep_gradients=True,
        sites=sites_of(job),
        count_memory=True,
        receive_buffers=() if swaps else shared_buffers(case.schedule),
        in_order=() if swaps else come_in_order(case.schedule),
    )


def trained(
    loop: Loop, case: Scheduled, iterations: int, patience: Deadline, swaps: Mapping[int, Scheduled] = NO_SWAPS
) -> Trained:
    """Train, with `patience` for every iteration; from the iteration of a number on with the schedule that `swaps` has
    for it. Raises RunFailed, and BadInput for a schedule that no training can go on with."""
    losses: list[float] = []
    norms: list[list[float]] = []
    memory: list[RankBytes] = []
    records: list[IterationRecord] = []
    going = loop.run([task_of(case, iterations, swaps=bool(swaps))], patience)
    for (records,) in going:
        losses.append(sum(record.loss for record in records if record.loss is not None))
        norms.append(_norms(records))
        counted = [record.memory for record in records if record.memory is not None]
        if counted and records[0].iteration > 0:
            raise ValueError("memory is counted in the first iteration only")
        memory += counted
        if (following := swaps.get(len(losses))) is not None:
            going.swap({0: timed(following)})
    gradients: dict[str, Any] = {}
    for record in records:
        for name, part in record.gradients.items():
            gradients[name] = gradients.get(name, 0.0) + part
    return Trained(losses, gradients, norms, memory, records)


def _norms(records: Sequence[IterationRecord]) -> list[float]:
    squares: dict[int, float] = {}
    for record in records:
        for layer, square in record.gradient_squares.items():
            squares[layer] = squares.get(layer, 0.0) + square
    return [math.sqrt(squares[layer]) for layer in sorted(squares)]


def difference(got: Trained, expected: Reference) -> Difference:
    """How far a training is from that of one process; infinitely where it has not the same parameters."""
    if got.gradients.keys() != expected.gradients.keys():
        return Difference(math.inf, math.inf, math.inf)
    return Difference(
        _relative(got.losses, expected.losses),
        max(_of_tensor(got.gradients[name], expected.gradients[name].numpy()) for name in got.gradients),
        max(map(_relative, got.norms, expected.gradient_norms)),
    )


class MemoryDifference(NamedTuple):
    """Per kind of memory, the largest relative difference of what a rank held from what was predicted."""

    by_kind: RankBytes
    fine: bool
    """Every one is within its tolerance."""


def memory_difference(got: Trained, case: Scheduled) -> MemoryDifference:
    """Of a model that says what it keeps. Raises ValueError for another one."""
    predicted = predicted_bytes(case.plan.jobs[0], case.schedule, swaps=False)
    if predicted is None:
        raise ValueError(f"{case.plan.jobs[0].workload.name}: its model does not say what it keeps")
    ranks = list(zip(got.memory, predicted, strict=True))
    kinds = range(len(RankBytes._fields))
    found = RankBytes(*(max(_off(held[kind], said[kind]) for held, said in ranks) for kind in kinds))
    in_parts = any(action.part.of > 1 for _, action in case.schedule.actions())
    most = WITH_PARTS if in_parts else MEMORY_TOLERANCE
    return MemoryDifference(found, all(off <= limit for off, limit in zip(found, most, strict=True)))


def _off(ours: float, theirs: float) -> float:
    if ours == theirs:
        return 0.0
    return abs(ours - theirs) / theirs if theirs else math.inf


def _relative(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max(_off(a, b) for a, b in zip(ours, theirs, strict=True))


def _of_tensor(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
