"""What a machine adds to messages: which of the measured iterations tell of it, and which are trained again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from testbed.judge.iterations import IterationRow, Witnesses
from testbed.judge.messages import NOBODY_ALIKE
from testbed.model.host_prediction import predict_on_host
from testbed.model.lower import Load
from testbed.model.simulate import simulate
from testbed.pipeline.problem import uniform
from testbed.progress import Lines
from testbed.schedule.registry import generate
from testbed.session.message_costs import Observed, of_observed, representative, with_repeats
from testbed.trace.tables import Trace

PROBLEM = uniform(4, 8, delay_s=2, cuts=(1,))
SCHEDULE = generate("1f1b", PROBLEM)
PREDICTED = simulate(PROBLEM, SCHEDULE)
PREDICTED_S = float(PREDICTED.makespans()[0])
STALL_S = 20.0


def row(*, stalled: bool = False) -> IterationRow:
    """An iteration as the witnesses saw it: a stall shows in what was stolen and in a sleep that ended late."""
    seen = Witnesses(steal_s=STALL_S, wake_late_s=STALL_S) if stalled else Witnesses(steal_s=0.0, wake_late_s=1e-4)
    return IterationRow(0, False, PREDICTED_S, 0.4, 5.0, (4.0,), (4.0,), 0, 0.0, 96, 0.0, seen)


def trace(*, stalled: bool = False, slow_s: float = 0.0) -> Trace:
    """The prediction, every message later by this much; in a stall one message of every flow is later still."""
    messages = PREDICTED.messages.copy()
    messages["taken_s"] += slow_s
    if stalled:
        messages["taken_s"][messages["microbatch"] == 3] += STALL_S
    return Trace(PREDICTED.actions, messages, PREDICTED.n_ranks)


def observed(*stalled: bool, slow_s: float = 0.0) -> Observed:
    rows = [row(stalled=one) for one in stalled]
    traces = [trace(stalled=one, slow_s=slow_s) for one in stalled]
    return Observed(0, PROBLEM, NOBODY_ALIKE, PREDICTED, rows, traces, [None] * len(rows), len(rows) + 1)


def repeating(*rounds: Sequence[bool]) -> tuple[list[int], Callable[[int], list[Observed]]]:
    """Iterations that are trained again, one after the other as these were; and how many were asked for each time."""
    asked: list[int] = []
    coming = iter(rounds)

    def again(count: int) -> list[Observed]:
        asked.append(count)
        return [observed(*next(coming)[:count])]

    return asked, again


def predicted_s(seen: Observed) -> tuple[float, float]:
    """With what this machine adds, and the width of its interval; as shares of the prediction."""
    found = of_observed([seen])
    assert found is not None
    host = predict_on_host(Load(PROBLEM, SCHEDULE), found[0].extra)
    return host.median_s / PREDICTED_S - 1, (host.high_s - host.low_s) / PREDICTED_S


def test_a_calm_machine_is_measured_once() -> None:
    asked, again = repeating()
    (found,) = with_repeats([observed(False, False, False)], again, Lines(quiet=True))
    assert asked == []
    assert len(found.rows) == 3


@pytest.mark.parametrize("stalled", [(True, False, False), (False, True), (True, True, False)])
def test_one_stall_in_few_iterations_moves_nothing(stalled: tuple[bool, ...]) -> None:
    """As many more are trained as it spoilt, and it is left out."""
    asked, again = repeating([False] * 3)
    (found,) = with_repeats([observed(*stalled)], again, Lines(quiet=True))
    assert asked == [sum(stalled)]
    assert found.iterations == len(stalled) + 1 + sum(stalled) + 1
    adds, width = predicted_s(found)
    assert adds == pytest.approx(0.0, abs=1e-6)
    assert width == pytest.approx(0.0, abs=1e-6)


def test_without_another_try_one_stall_in_two_iterations_decides() -> None:
    adds, width = predicted_s(observed(False, True))
    assert adds > 0.025
    assert width > 1.0


def test_a_machine_that_is_always_busy_is_measured_as_it_is_and_for_a_bounded_time() -> None:
    asked, again = repeating([True] * 3, [True] * 3)
    (found,) = with_repeats([observed(True, True, True)], again, Lines(quiet=True))
    assert asked == [3], "no more than there were"
    assert representative([found.rows]) == list(range(6)), "all of them tell of this machine"
    assert predicted_s(found)[0] > 0.1


def test_repeats_end_though_single_ones_are_disturbed_again_and_again() -> None:
    asked, again = repeating(*[[True]] * 16)
    with_repeats([observed(*[False] * 15, True)], again, Lines(quiet=True))
    assert asked == [1, 1, 1]


def test_a_slow_machine_that_nothing_disturbs_stays_slow() -> None:
    asked, again = repeating()
    (found,) = with_repeats([observed(False, False, False, slow_s=0.5)], again, Lines(quiet=True))
    assert asked == []
    assert predicted_s(found)[0] > 0.025


def test_what_disturbs_one_job_spoils_the_iteration_of_all() -> None:
    one, other = observed(True, False, False), observed(False, False, True)
    assert representative([one.rows, other.rows]) == [0, 1, 2]
    assert representative([one.rows, observed(False, False, False).rows]) == [1, 2]


def test_costs_are_kept_by_kind() -> None:
    found = of_observed([observed(False, False)])
    assert found is not None
    kinds = {kind for _, _, kind in found[0].extra.by_flow}
    assert kinds == set(np.unique(PREDICTED.messages["kind"]).tolist())
