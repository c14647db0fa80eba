"""What the links owe messages by when all were sent: as predicted where they were sent as predicted, and else not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_together import job, planned
from test_unmodelled import around

from testbed.judge.messages import message_times
from testbed.model.replay import on_the_way_s
from testbed.model.simulate import simulate_jobs
from testbed.plan.costs import predict_case, schedule_of
from testbed.planning.prediction import loads_of, parts_of, predict_together

PLAN = planned(job("a/0", "b/0"), job("a/1", "b/1", message="300001 B"))
(CASE,) = PLAN.cases
SCHEDULES = [one for number in (0, 1) if (one := schedule_of(PLAN, CASE, job=number)) is not None]
LOADS = loads_of(PLAN, CASE, SCHEDULES)
PARTS = parts_of(PLAN, CASE, predict_together(PLAN, CASE))


def test_what_is_sent_as_predicted_arrives_as_predicted() -> None:
    for part, due_s in zip(PARTS, on_the_way_s(LOADS, PARTS), strict=True):
        assert due_s is not None
        assert due_s == pytest.approx(part.messages["arrived_s"] - part.messages["sent_s"], abs=1e-7)
        times = message_times(part, part, paced=True, on_the_way_s=due_s)
        assert np.nanmax(np.abs(times.extra_s)) < 1e-7


def test_a_job_whose_neighbour_is_late_is_owed_what_it_takes_alone() -> None:
    """Then nothing is off, though every message that waited for another one comes earlier than predicted."""
    alone = [predict_case(PLAN, CASE, schedule, job=number) for number, schedule in enumerate(SCHEDULES)]
    later = [LOADS[0], LOADS[1]._replace(start_s=LOADS[1].start_s + 60.0)]
    moved = parts_of(PLAN, CASE, simulate_jobs(later))
    for one, after, part in zip(alone, on_the_way_s(LOADS, moved), PARTS, strict=True):
        assert after is not None
        assert np.sort(after) == pytest.approx(np.sort(one.messages["arrived_s"] - one.messages["sent_s"]), abs=1e-6)
        assert np.abs(after.sum() - (part.messages["arrived_s"] - part.messages["sent_s"]).sum()) > 1e-3


def test_a_job_that_is_alone_is_owed_what_was_predicted() -> None:
    assert on_the_way_s(LOADS[:1], PARTS[:1]) == [None]
    late = [load._replace(receives="late") for load in LOADS]
    assert on_the_way_s(late, PARTS) == [None, None]


def test_a_prediction_that_hangs_on_who_comes_first_holds_messages_against_the_order_that_came() -> None:
    """Slots 3 us longer and shorter bring messages that meet in the other order: they are off by milliseconds, and
    nothing is wrong with the links."""
    plan = around(schedules="[zb-h1]")
    schedule = schedule_of(plan, plan.cases[0])
    assert schedule is not None
    (load,) = loads_of(plan, plan.cases[0], [schedule])

    def moved(slots_s: tuple[float, ...]) -> tuple[float, ...]:
        return (slots_s[0] + 3e-6, slots_s[1] - 3e-6, *slots_s[2:])

    problem = replace(load.problem, forward_s=moved(load.problem.forward_s), input_s=moved(load.problem.input_s))
    predicted, came = simulate_jobs([load]), simulate_jobs([load._replace(problem=problem)])
    assert came.makespans()[0] > predicted.makespans()[0] * 1.01
    (due_s,) = on_the_way_s([load], [came], order_sensitive=True)
    extra_s = [message_times(came, predicted, paced=True, on_the_way_s=due).extra_s for due in (None, due_s)]
    assert np.nanmax(np.abs(extra_s[0])) > 1e-3
    assert np.nanmax(np.abs(extra_s[1])) < 20e-6
