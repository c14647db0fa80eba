"""States of ranks on their way to each other's memory in a lab, when nothing else is on the links."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Plan
from testbed.plan.state_exchange import StateMessage, state_acknowledgements_s, state_traffic
from testbed.plan.traffic import acknowledgements_s
from testbed.session import deadlines
from testbed.session.loop import START_MARGIN_S, Loop
from testbed.train.protocol import ExchangeStates, PostStates, StatesHeld

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
    """save, restore, or join."""
    planned_bytes: tuple[float, ...]
    """Per direction of the network, then per network card."""
    counted_bytes: tuple[float, ...]
    """The same."""


class StateExchanges:
    """Between the workers of the only job of a plan, while a case is trained."""

    def __init__(self, plan: Plan, case: Case, loop: Loop, links: CarriedBytes) -> None:
        self._plan, self._case, self._loop, self._links = plan, case, loop, links
        (self._job,) = plan.jobs
        self._round_trip_s = deadlines.longest_round_trip_s(plan)

    @property
    def margin_s(self) -> float:
        """An exchange is announced so long ahead: word that receives are posted has come then, and nothing else is on
        its way."""
        network, host = planned(self._plan.network), self._plan.host_costs
        slowest_bps = min((direction.rate_bps for direction in network.everything), default=float("inf"))
        notices = 4 * self._job.mesh.size * self._job.workload.streams
        return START_MARGIN_S + 2 * self._round_trip_s + 8 * notices * host.notice_bytes / slowest_bps

    def post(self, messages: tuple[StateMessage, ...], version: int) -> Sequence[float]:
        """Post receives, when what came before is acknowledged; returns what links had carried by then. Raises
        RunFailed."""
        time.sleep(self._round_trip_s + acknowledgements_s(self._plan, self._case))
        before = self._links.carried()
        self._loop.ask({0: PostStates(messages, version)}, deadlines.of_connecting(self._plan), "post states")
        return before

    def told(self, messages: tuple[StateMessage, ...], version: int, start_s: float) -> ExchangeStates:
        """What workers are told to send these at an instant."""
        return ExchangeStates(messages, version, start_s, self._plan.host_costs.stagger_s, packs=False)

    def exchange(self, told: ExchangeStates, expected_s: float) -> float:
        """Have it sent, which should take so long from the start; returns when all had come. Raises RunFailed."""
        deadline = deadlines.of_iteration(max(0.0, told.start_s - time.monotonic()) + expected_s)
        self._loop.tell(0, told, _EXCHANGE)
        (held,) = self._loop.gather(StatesHeld, deadline, _EXCHANGE)
        return max(one.came_s for one in held)

    def counted(self, what: str, messages: tuple[StateMessage, ...], before: Sequence[float]) -> StateExchange:
        """What links have carried since `before`, for one that is over, when all of it is acknowledged."""
        time.sleep(self._round_trip_s + state_acknowledgements_s(self._plan, self._case, messages))
        counted = tuple(now - then for now, then in zip(self._links.carried(), before, strict=True))
        traffic = state_traffic(self._plan, self._case, messages)
        return StateExchange(what, tuple(one.wire_bytes for one in traffic), counted)


def empty_memory(rank: int, size: int) -> int:
    """The descriptor of a file without a name that has room for so many bytes of states in each version."""
    file = os.memfd_create(f"states of rank {rank}", os.MFD_CLOEXEC)
    os.ftruncate(file, _VERSIONS * size)
    return file
