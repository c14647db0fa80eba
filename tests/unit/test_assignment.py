"""What each rank is given of a training."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.pipeline.ir import Schedule
from testbed.planning.resolve import generate, load_plan
from testbed.spec.choice import ScheduleChoice
from testbed.train.assignment import TimedSchedule, TrainingTask


def task(ranks: int, *settings: str) -> TrainingTask:
    nodes = f"topology.datacenters={{paris: {{nodes: {4 * ranks}}}, warsaw: {{nodes: {4 * ranks}}}}}"
    shape = [f"parallelism.pipeline={ranks}", f"model.layers={2 * ranks}", f"memory={ranks}", nodes, *settings]
    plan = load_plan(Path("two-dc-longhaul"), Path("tiny-gpt-pp4"), settings=shape)
    schedule: Schedule = generate(plan, ScheduleChoice(schedule="1f1b")).schedule
    durations = tuple(tuple(float(rank) for _ in row) for rank, row in enumerate(schedule.rows))
    return TrainingTask(TimedSchedule(schedule, durations), plan.jobs[0].workload, 1)


@pytest.mark.parametrize(("rank", "pipeline_rank"), [(0, 0), (1, 0), (4, 2), (5, 2), (6, 0), (11, 2)])
def test_a_rank_gets_its_own_row(rank: int, pipeline_rank: int) -> None:
    whole = task(3, "parallelism.data=2", "parallelism.tensor=2")
    given = whole.of(rank)
    schedule, slots = given.begins_with.schedule, given.begins_with.durations_s
    before = whole.begins_with.schedule
    assert schedule.rows[pipeline_rank] == before.rows[pipeline_rank]
    assert slots is not None
    assert set(slots[pipeline_rank]) == {float(pipeline_rank)}
    assert [rank for rank in range(3) if schedule.rows[rank] or slots[rank]] == [pipeline_rank]
    assert (schedule.n_ranks, schedule.stage_to_rank) == (before.n_ranks, before.stage_to_rank)


def test_without_pacing_there_are_no_slots() -> None:
    whole = task(2)
    unpaced = replace(whole, begins_with=replace(whole.begins_with, durations_s=None))
    assert unpaced.of(1).begins_with.durations_s is None


def test_what_is_sent_to_a_rank_hardly_grows_with_their_number() -> None:
    few, many = (len(pickle.dumps(task(ranks).of(1))) for ranks in (4, 24))
    assert many < 2 * few
