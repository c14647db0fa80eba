"""Timed actions while a session waits for workers: done when they are due, and the deadline is one of them."""

from __future__ import annotations

import socket
import time
from multiprocessing.connection import Connection
from typing import NoReturn

import pytest

from testbed.errors import RunFailed
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.session.timers import TimedAction, Timers
from testbed.train.connected_workers import ConnectedWorkers
from testbed.train.protocol import Ready, WorldSpec


def test_what_is_due_is_done_once_and_in_order() -> None:
    done: list[str] = []
    now = time.monotonic()
    timers = Timers([TimedAction(0.2, lambda: done.append("later"))], now - 1)
    timers.at(now - 1, lambda: done.append("first"))
    timers.at(now - 1, lambda: done.append("second"))
    timers.at(now + 1000, lambda: done.append("never"))
    timers.act()
    timers.act()
    assert done == ["first", "second", "later"]
    left_s = timers.left_s()
    assert left_s is not None
    assert 900 < left_s <= 1000
    assert Timers().left_s() is None


class OneWorker(ConnectedWorkers):
    """One worker, whose replies are sent by hand; nobody tells of its end."""

    def __init__(self) -> None:
        ours, self.worker = pairs()
        super().__init__([ours], [])

    def fork_workers(self, world: WorldSpec) -> NoReturn:
        raise NotImplementedError

    def _gone(self, teller: Connection) -> NoReturn:
        raise NotImplementedError

    def called(self, *ranks: int) -> str:
        return f"rank {ranks[0]}"

    def log(self, rank: int) -> str:
        return ""


def pairs() -> tuple[Connection, Connection]:
    one, other = socket.socketpair()
    return Connection(one.detach()), Connection(other.detach())


@pytest.fixture
def launcher() -> OneWorker:
    return OneWorker()


def test_actions_are_done_while_workers_are_waited_for(launcher: OneWorker) -> None:
    """The worker answers when the second action tells it to; the third is due too late."""
    done: list[str] = []
    actions = [
        TimedAction(0.0, lambda: done.append("first")),
        TimedAction(0.01, lambda: launcher.worker.send(Ready(0))),
        TimedAction(100.0, lambda: done.append("third")),
    ]
    (replies,) = Loop([launcher]).gather(
        Ready, Deadline(50, "a test"), "answer", timers=Timers(actions, time.monotonic())
    )
    assert replies == [Ready(0)]
    assert done == ["first"]


def test_a_deadline_ends_the_wait_behind_the_actions_that_come_before_it(launcher: OneWorker) -> None:
    done: list[str] = []
    timers = Timers([TimedAction(0.01, lambda: done.append("first"))], time.monotonic())
    with pytest.raises(RunFailed, match=r"rank 0 did not answer within 0\.1 s \(a test\)"):
        Loop([launcher]).gather(Ready, Deadline(0.1, "a test"), "answer", timers=timers)
    assert done == ["first"]
