"""An interrupt at any moment of a netlink request is a KeyboardInterrupt, and nothing else."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

from testbed.interrupts import held_interrupts, interrupt_unless_held
from testbed.lab.namespaces import scratch_network
from testbed.lab.netlink import Netlink

pytestmark = pytest.mark.root


@pytest.fixture
def alarms() -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        interrupt_unless_held()

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.timeout(120, method="thread")  # else it were SIGALRM, too
def test_no_request_is_left_half_made(alarms: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python itself loses one that comes while it takes an object down, and says so, but not where that is a socket
    that it warns of: one in some 60,000."""
    random.seed(7)
    interrupted, lost = 0, list[object]()
    monkeypatch.setattr(sys, "unraisablehook", lambda told: lost.append(told.exc_type))
    with scratch_network():
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.01))
                for _ in range(1000):
                    with Netlink(None, "scratch namespace") as netlink:
                        netlink.index("lo")
                        netlink.ask("link", "set", index=1, state="up")
            except KeyboardInterrupt:
                interrupted += 1
    assert 298 <= interrupted + lost.count(KeyboardInterrupt) <= 300
    assert interrupted >= 290


def test_what_was_held_is_raised_behind_the_outermost_body(alarms: None) -> None:
    reached = []

    def interrupted() -> None:
        with held_interrupts():
            with held_interrupts():
                signal.raise_signal(signal.SIGALRM)
                reached.append("inner")
            reached.append("outer")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["inner", "outer"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGALRM)
    with held_interrupts():  # nothing is left of either
        reached.append("after")
    assert reached[-1] == "after"
