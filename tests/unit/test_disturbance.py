"""What the machine did meanwhile: shares from readings, and how long somebody waits for quiet."""

from __future__ import annotations

import math
import os

import pytest

from testbed.lab.calibrate import AskedDirection, LinkCheck, MeasuredDirection
from testbed.lab.disturbance import Counted, Disturbance, between, count, wait_for_quiet
from testbed.lab.gate import Gate, warn
from testbed.lab.probes import Spread

CALM = Disturbance(0.1, 0.0, 0.0, Spread(1e-5, 5e-5, 1e-4, 100))
ROBBED = Disturbance(0.1, 0.3, 0.0, Spread(1e-5, 5e-5, 1e-4, 100))
LATE = Disturbance(0.1, 0.0, 0.0, Spread(1e-5, 1e-3, 4e-3, 100))
QUEUED = Disturbance(0.1, None, 0.5)


def test_shares_between_two_readings() -> None:
    processors = os.cpu_count() or 1
    found = between(Counted(1.0, 10.0, (0.5, math.nan)), Counted(3.0, 10.0 + 0.15 * processors, (0.7, 3.0)))
    assert found == Disturbance(2.0, pytest.approx(0.075), pytest.approx(0.1))  # type: ignore[arg-type]


def test_what_the_kernel_does_not_say_stays_unknown() -> None:
    found = between(Counted(1.0, None, (math.nan,)), Counted(2.0, None, (math.nan,)))
    assert found == Disturbance(1.0, None, None)
    assert found.quiet
    assert str(found) == "the kernel does not say"


def test_readings_of_this_machine() -> None:
    before, after = count(()), count(())
    assert after.at_s >= before.at_s
    assert len(before.waited_s) == 1
    assert before.stolen_s is None or after.stolen_s >= before.stolen_s  # type: ignore[operator]


def test_each_disturbance_alone_is_no_quiet() -> None:
    assert CALM.quiet
    assert not any(one.quiet for one in (ROBBED, LATE, QUEUED))


def waited(looks: list[Disturbance], limit_s: float) -> tuple[list[Disturbance], list[float]]:
    """What is seen by somebody whose clock goes on by 1 s with every look, and the seconds left after each."""
    now, told, coming = [0.0], list[float](), iter(looks)

    def look() -> Disturbance:
        now[0] += 1.0
        return next(coming)

    seen = wait_for_quiet(limit_s, look, lambda _seen, left_s: told.append(left_s), clock=lambda: now[0])
    return list(seen), told


def test_two_quiet_looks_in_a_row_are_enough() -> None:
    assert waited([ROBBED, CALM, LATE, CALM, CALM, CALM], 20.0)[0] == [ROBBED, CALM, LATE, CALM, CALM]


def test_waiting_ends_with_its_limit() -> None:
    seen, left = waited([ROBBED] * 10, 3.0)
    assert seen == [ROBBED] * 3
    assert left == [2.0, 1.0, 0.0]


def test_a_gate_names_every_direction_that_is_off() -> None:
    asked, found = AskedDirection(0.01, 0.02, 1e9), MeasuredDirection()
    good = LinkCheck(0, "a->b", asked, found, (), machine=CALM)
    bad = LinkCheck(1, "b->a", asked, found, ("rate off", "late"), machine=ROBBED)
    calm = LinkCheck(1, "b->a", asked, found, ("rate off",), machine=CALM)
    (reason,) = Gate((good, bad)).reasons()
    assert "b->a" in reason
    assert "rate off; late" in reason
    assert "30.0% of the processors' time was stolen" in reason
    assert "quiet" not in reason
    assert "quiet (so the link itself may be off)" in Gate((calm,)).reasons()[0]
    assert Gate((good,)).summary()["as_asked"]
    assert Gate((good, bad), (ROBBED, CALM)).as_json()["waited_for_quiet"][0]["quiet"] is False


@pytest.mark.parametrize("virtual", [False, True])
def test_a_gate_sends_nobody_to_the_clock_that_runs_already(virtual: bool) -> None:
    said: list[str] = []
    bad = LinkCheck(1, "b->a", AskedDirection(0.01, 0.02, 1e9), MeasuredDirection(), ("rate off",), machine=CALM)
    warn(Gate((bad,)), said.append, virtual=virtual)
    assert said[-1].startswith("The run goes on, untrusted.")
    assert ("--clock virtual" in said[-1]) is not virtual
