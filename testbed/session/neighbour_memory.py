"""States of ranks in each other's memory, in a lab: memory that outlives workers, and what goes over the links for it.

What a rank holds is a file without a name, of which this process has a descriptor: workers that are replaced find it
as it was. That of a rank that fails is closed, so that the kernel frees it, and its successor gets an empty one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from testbed.goodput.spans import Keeping
from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Plan
from testbed.plan.state_exchange import (
    StateMessage,
    StateTraffic,
    neighbours,
    restoring,
    saving,
    state_bytes,
    state_traffic,
)
from testbed.session import deadlines
from testbed.session.loop import START_MARGIN_S, Loop
from testbed.train.protocol import ExchangeStates, FailAt, PostStates, Remember, StatesHeld

_VERSIONS = 2
"""Of every state: while one is written, the one before it stays."""
_EXCHANGE = "exchange states"


class CarriedBytes(Protocol):
    """What links have carried."""

    def carried(self) -> Sequence[float]:
        """Wire bytes of every direction since the case began; () where nothing counts them."""


class MemoryOfWorkers(Protocol):
    """Has workers get memory."""

    def remember(self, files: Sequence[int]) -> None:
        """Have the launcher hand these descriptors over, one to each rank, when they are told Remember."""


class StateExchange(NamedTuple):
    """An exchange of states."""

    what: str
    """save, or restore."""
    planned_bytes: tuple[float, ...]
    """Per direction of the network, then per network card."""
    counted_bytes: tuple[float, ...]
    """The same."""


class NeighbourMemory:
    """Of the only job of a plan, while a case is trained. A context manager: leaving it frees the memory."""

    def __init__(
        self, plan: Plan, case: Case, keeping: Keeping, loop: Loop, workers: MemoryOfWorkers, links: CarriedBytes
    ) -> None:
        """`keeping` has what exchanges should take."""
        assert plan.recovery is not None
        assert plan.recovery.checkpoints.memory is not None
        (self._job,) = plan.jobs
        self._plan, self._case, self._keeping = plan, case, keeping
        self._loop, self._workers, self._links = loop, workers, links
        self._sizes = state_bytes(self._job, case, plan.recovery.checkpoints.memory)
        keeps = {to: rank for rank, to in enumerate(neighbours(self._job.mesh))}
        self._held = tuple((size, self._sizes[keeps[rank]]) for rank, size in enumerate(self._sizes))
        self._files = [_empty(rank, sum(sizes)) for rank, sizes in enumerate(self._held)]
        self.version = 0
        """Of the states that are whole."""
        self.exchanged: list[StateExchange] = []
        """Of those that came to their end, in order."""
        self.began_s = 0.0
        """The instant at which the last checkpoint began."""
        self._round_trip_s = deadlines.longest_round_trip_s(plan)

    def __enter__(self) -> NeighbourMemory:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            os.close(file)

    @property
    def _margin_s(self) -> float:
        """An exchange is announced so long ahead: word that receives are posted has come then, and nothing else is on
        its way."""
        network, host = planned(self._plan.network), self._plan.host_costs
        slowest_bps = min((direction.rate_bps for direction in network.everything), default=float("inf"))
        notices = 4 * len(self._held) * self._job.workload.streams
        return START_MARGIN_S + 2 * self._round_trip_s + 8 * notices * host.notice_bytes / slowest_bps

    def hand_over(self, lost: Collection[int] = ()) -> None:
        """Give workers, that have just connected, their memory; of those that are `lost` an empty one. Raises
        RunFailed."""
        for rank in lost:
            os.close(self._files[rank])
            self._files[rank] = _empty(rank, sum(self._held[rank]))
        self._workers.remember(self._files)
        element = self._job.workload.model.element_bytes
        self._loop.ask({0: Remember(self._held, element)}, deadlines.of_connecting(self._plan), "have memory")

    def save(self, slot_s: float, fails: FailAt | None, begins: Callable[[float], None]) -> float:
        """Have every rank send its state to its neighbour, a slot behind the instant that this begins at (`began_s`);
        returns how long after that all states had come.

        `fails` has workers end so long after it; `begins` is told the instant ahead. Raises RunFailed, also where
        workers end.
        """
        messages = saving(self._job.mesh, self._sizes)
        before = self._post(messages, 1 - self.version)
        self.began_s = time.monotonic() + self._margin_s
        begins(self.began_s)
        failing = None if fails is None else replace(fails, at_s=self.began_s + fails.at_s)
        told = self._told(messages, 1 - self.version, self.began_s + slot_s)
        came_s = self._exchange(replace(told, packs=True, fails=failing), slot_s + self._keeping.send_s)
        self._note("save", messages, before)
        return came_s - self.began_s

    def saved(self) -> None:
        """What was sent last is whole, and takes the place of what was before."""
        self.version = 1 - self.version

    def restore(self, at_s: float, lost: frozenset[int]) -> float:
        """Have ranks that are `lost` get what they had in memory, from an instant on, or as soon after it as can be;
        returns when they had it. Raises RunFailed."""
        messages = restoring(self._job.mesh, self._sizes, lost)
        assert messages is not None  # else a restart goes on from disk
        if not messages:
            time.sleep(max(0.0, at_s - time.monotonic()))
            return time.monotonic()
        before = self._post(messages, self.version)
        start_s = max(at_s, time.monotonic() + self._margin_s)
        told = self._told(messages, self.version, start_s)
        came_s = self._exchange(told, self._keeping.send_again_s(lost) or 0.0)
        self._note("restore", messages, before)
        return came_s

    def traffic_of(self, count: int) -> tuple[StateTraffic, ...]:
        """Per direction, what so many checkpoints bring."""
        each = state_traffic(self._plan, self._case, saving(self._job.mesh, self._sizes))
        return tuple(StateTraffic(count * one.wire_bytes, count * one.messages) for one in each)

    def _post(self, messages: tuple[StateMessage, ...], version: int) -> Sequence[float]:
        time.sleep(self._round_trip_s)  # what came before is acknowledged
        before = self._links.carried()
        self._loop.ask({0: PostStates(messages, version)}, deadlines.of_connecting(self._plan), "post states")
        return before

    def _told(self, messages: tuple[StateMessage, ...], version: int, start_s: float) -> ExchangeStates:
        return ExchangeStates(messages, version, start_s, self._plan.host_costs.stagger_s, packs=False)

    def _exchange(self, told: ExchangeStates, expected_s: float) -> float:
        deadline = deadlines.of_iteration(max(0.0, told.start_s - time.monotonic()) + expected_s)
        self._loop.tell(0, told, _EXCHANGE)
        (held,) = self._loop.gather(StatesHeld, deadline, _EXCHANGE)
        return max(one.came_s for one in held)

    def _note(self, what: str, messages: tuple[StateMessage, ...], before: Sequence[float]) -> None:
        time.sleep(self._round_trip_s)  # the last acknowledgements
        counted = tuple(now - then for now, then in zip(self._links.carried(), before, strict=True))
        traffic = state_traffic(self._plan, self._case, messages)
        self.exchanged.append(StateExchange(what, tuple(one.wire_bytes for one in traffic), counted))


def _empty(rank: int, size: int) -> int:
    file = os.memfd_create(f"states of rank {rank}", os.MFD_CLOEXEC)
    os.ftruncate(file, _VERSIONS * size)
    return file
