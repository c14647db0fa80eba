"""What ranks executed against what the label says; and each measured iteration against its own prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testbed.judge.execution import executed_rows, execution_check, planned_rows
from testbed.judge.messages import by_flow, by_iteration, message_times
from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.plan.mesh import Mesh
from testbed.schedule.registry import generate
from testbed.trace.predictions import predicted_numbers, predicted_summary, predicted_times_s, prediction_of
from testbed.trace.summary import summaries
from testbed.trace.tables import Trace, concatenate

NEAR, FAR = (uniform(4, 8, delay_s=delay_s, cuts=(1,)) for delay_s in (2, 5))
ONE_F_ONE_B, ZB_H1 = generate("1f1b", NEAR), generate("zb-h1", NEAR)


def called(trace: Trace, number: int) -> Trace:
    """The same as iteration `number`."""
    tables = trace.actions.copy(), trace.messages.copy()
    for table in tables:
        table["iteration"] = number
    return replace(trace, actions=tables[0], messages=tables[1])


def test_rows_are_told_from_when_ranks_came_to_their_actions() -> None:
    trace = concatenate([called(simulate(NEAR, ONE_F_ONE_B), number) for number in (3, 4)])
    shuffled = np.random.default_rng(1).permutation(len(trace.actions))
    found = executed_rows(replace(trace, actions=trace.actions[shuffled]), first_rank=10)
    assert [one.row for one in found] == list(ONE_F_ONE_B.rows)
    assert [one.rank for one in found] == [10, 11, 12, 13]
    assert {one.iterations for one in found} == {(3, 4)}
    assert execution_check(found, planned_rows(Mesh(1, 4, 1, first_rank=10), ONE_F_ONE_B.rows)).ok


def test_another_schedule_than_the_label_says_is_not_trusted() -> None:
    trained = concatenate([called(simulate(NEAR, one), number) for number, one in enumerate((ZB_H1, ONE_F_ONE_B))])
    planned = planned_rows(Mesh(1, 4, 1), ZB_H1.rows)
    check = execution_check(executed_rows(trained), planned)
    assert not check.ok
    assert check.found == "0 of 4 ranks"
    assert "4 of 4 ranks executed another schedule than the plan's: rank 0 did " in check.reasons[0]
    assert check.reasons[0].endswith("in iteration 1")
    assert "rank 3 executed nothing" in execution_check(executed_rows(trained)[:-2], planned).reasons[0]


def test_replicas_and_tensor_ranks_execute_the_row_of_their_stage() -> None:
    rows = ONE_F_ONE_B.rows[:2]
    assert planned_rows(Mesh(2, 2, 2), rows) == {0: rows[0], 1: rows[0], 2: rows[1], 3: rows[1]} | {
        4: rows[0],
        5: rows[0],
        6: rows[1],
        7: rows[1],
    }
    assert planned_rows(Mesh(1, 2, 1), None) == {}


def test_actions_that_were_not_predicted_leave_their_messages_unknown() -> None:
    """Verdicts are told of such a run, too."""
    times = message_times(simulate(NEAR, ONE_F_ONE_B), simulate(NEAR, ZB_H1), paced=True)
    assert np.isnan(times.extra_s[times.rows["kind"] == 1]).all()
    assert by_flow(times)


NEAR_TRACE, FAR_TRACE = (simulate(problem, ONE_F_ONE_B) for problem in (NEAR, FAR))
CHANGING = concatenate([called(NEAR_TRACE, 0), called(FAR_TRACE, 3)])
MEASURED = concatenate([called(FAR_TRACE if number >= 3 else NEAR_TRACE, number) for number in range(1, 6)])


def test_one_prediction_stands_for_all_iterations_until_the_next() -> None:
    assert predicted_numbers(NEAR_TRACE, [1, 7]).tolist() == [0, 0]
    assert predicted_numbers(CHANGING, [0, 2, 3, 9]).tolist() == [0, 0, 3, 3]
    assert len(prediction_of(CHANGING, 4).actions) == len(FAR_TRACE.actions)
    near_s, far_s = float(NEAR_TRACE.makespans()[0]), float(FAR_TRACE.makespans()[0])
    assert predicted_times_s(CHANGING, [2, 3]).tolist() == [near_s, far_s]
    assert predicted_summary(NEAR_TRACE, [1, 2]) == summaries(NEAR_TRACE)[0]
    assert predicted_summary(CHANGING, [2, 3, 4]).makespan_s == far_s
    with pytest.raises(ValueError, match="before the first predicted"):
        predicted_numbers(called(NEAR_TRACE, 3), [2])


def test_every_iteration_is_compared_with_its_own_prediction() -> None:
    own = message_times(MEASURED, CHANGING, paced=True)
    assert np.nanmax(np.abs(own.arrival_off_s)) == pytest.approx(0.0, abs=1e-9)
    iterations = MEASURED.iterations().tolist()
    shared = by_iteration(message_times(MEASURED, NEAR_TRACE, paced=True), iterations)
    longest = np.nanmax([np.nanmax(np.abs(each), axis=0) for each in shared], axis=0)
    assert longest == pytest.approx([0.0, 0.0, 3.0, 3.0, 3.0])
