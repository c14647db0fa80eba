"""The logical clock that slots are paced by."""

from __future__ import annotations

import pytest

from testbed.trace.tables import UNNOTICED_WAIT_S
from testbed.train.pacing import LogicalClock, now_s

SLOT_S = 1e-3


@pytest.mark.parametrize(
    ("reached_s", "ready_s", "computed_s", "overrun_s"),
    [
        pytest.param(0.0, 0.0, 0.9e-3, 0.0, id="it fits"),
        pytest.param(0.0, 0.0, 1.4e-3, 0.4e-3, id="computing takes longer"),
        pytest.param(0.95e-3, 1.1e-3, 1.1e-3, 0.0, id="a wait that ends behind the slot"),
        pytest.param(0.95e-3, 1.1e-3, 1.3e-3, 0.2e-3, id="that wait, and computing"),
        pytest.param(1.5e-3, 1.5e-3, 1.6e-3, 0.6e-3, id="an action before it was too long"),
        pytest.param(1.5e-3, 1.6e-3, 1.7e-3, 0.6e-3, id="that, and a wait"),
    ],
)
def test_what_overruns_a_slot_is_computing(
    reached_s: float, ready_s: float, computed_s: float, overrun_s: float
) -> None:
    """All in the past, so that nothing sleeps; seconds behind where the slot begins."""
    assert ready_s - reached_s < UNNOTICED_WAIT_S
    begin_s = now_s() - 1.0
    clock = LogicalClock(begin_s)
    assert clock.begin(begin_s + reached_s, begin_s + ready_s) == begin_s
    found = clock.finish(SLOT_S, begin_s + reached_s, begin_s + ready_s, begin_s + computed_s)
    assert found == pytest.approx(overrun_s, abs=1e-9)
    assert clock.time_s == begin_s + SLOT_S


def test_a_wait_that_counts_moves_the_slot() -> None:
    begin_s = now_s() - 1.0
    clock, ready_s = LogicalClock(begin_s), begin_s + 2 * UNNOTICED_WAIT_S
    assert clock.begin(begin_s, ready_s) == ready_s
    assert clock.finish(SLOT_S, begin_s, ready_s, ready_s + SLOT_S / 2) == 0.0


def test_waits_that_go_unnoticed_add_up_behind_short_slots() -> None:
    """Of 20 us, of which each waits for 100."""
    slot_s, wait_s, begin_s = 20e-6, 100e-6, now_s() - 1.0
    clock, reached_s = LogicalClock(begin_s), begin_s
    for _ in range(5):
        ready_s = reached_s + wait_s
        clock.begin(reached_s, ready_s)
        assert clock.finish(slot_s, reached_s, ready_s, ready_s) == pytest.approx(0.0, abs=1e-9)
        reached_s = ready_s
    assert clock.finish(slot_s, reached_s, reached_s, reached_s + 1e-3) == pytest.approx(1e-3, abs=1e-9)
    assert clock.time_s == pytest.approx(begin_s + 6 * slot_s, abs=1e-9)
