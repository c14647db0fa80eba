"""States of ranks in their own memory, in a lab: who is left goes on from there, and who is back gets a copy.

As in neighbour_memory.py each is a file without a name that outlives workers, and goes with the replica that is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from testbed.goodput.elastic_training import joining_messages
from testbed.plan.plan import Case, Plan
from testbed.plan.shard_copies import Replicas
from testbed.plan.state_exchange import whole_state_bytes
from testbed.planning.fewer_replicas import ranks_of, with_replicas
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.session.state_exchanges import CarriedBytes, MemoryOfWorkers, StateExchange, StateExchanges, empty_memory
from testbed.train.protocol import ExchangeStates, Remember


class SurvivorsMemory:
    """Of the only job of a plan, while a case is trained. A context manager: leaving it frees the memory."""

    def __init__(
        self, plan: Plan, case: Case, loop: Loop, workers: MemoryOfWorkers, links: CarriedBytes, *, room: int = 0
    ) -> None:
        """`room`: bytes that each rank has beside the whole of its state."""
        self._plan, self._case, self._loop, self._workers, self._links = plan, case, loop, workers, links
        (self._job,) = plan.jobs
        self._sizes = tuple(size + room for size in whole_state_bytes(self._job, case))
        self._files = [empty_memory(rank, size) for rank, size in enumerate(self._sizes)]
        self.version = 0
        """Of the states that are whole."""
        self.late_s = 0.0
        """So long after its instant what a restart sends began, since workers had just connected."""
        self.exchanged: list[StateExchange] = []
        """Of those that came to their end, in order."""

    def __enter__(self) -> SurvivorsMemory:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            os.close(file)

    def lose(self, replicas: Sequence[int]) -> None:
        """What the ranks of these had is gone."""
        for rank in ranks_of(self._job, replicas):
            os.close(self._files[rank])
            self._files[rank] = empty_memory(rank, self._sizes[rank])

    def hand_over(self, there: Replicas) -> None:
        """Give the workers of these replicas, that have just connected, their memory. Raises RunFailed."""
        ranks = ranks_of(self._job, there)
        self._workers.remember([self._files[rank] for rank in ranks])
        self._loop.ask({0: self._told(there)}, deadlines.of_connecting(self._plan), "have memory")

    def _told(self, there: Replicas) -> Remember:
        sizes = tuple((self._sizes[rank], 0) for rank in ranks_of(self._job, there))
        return Remember(sizes, self._job.workload.model.element_bytes)

    def _between(self, there: Replicas) -> StateExchanges:
        return StateExchanges(*with_replicas(self._plan, self._case, there), self._loop, self._links)

    def keep(self) -> None:
        """Have every rank write its state, as it is between two iterations, into its own memory; what was there before
        stays until all have. Raises RunFailed."""
        between = StateExchanges(self._plan, self._case, self._loop, self._links)
        between.exchange(ExchangeStates((), 1 - self.version, time.monotonic(), 0.0, packs=True), 0.0)
        self.version = 1 - self.version

    def send(self, there: Replicas, joining: Replicas, at_s: float, expected_s: float) -> float:
        """Have the ranks of replicas that are back get their state from others, from an instant on, or as soon after it
        as can be; returns when they had it. Raises RunFailed."""
        if not joining:
            self.late_s = max(0.0, time.monotonic() - at_s)
            time.sleep(max(0.0, at_s - time.monotonic()))
            return time.monotonic()
        messages, between = joining_messages(self._plan, self._case, there, joining), self._between(there)
        before = between.post(messages, self.version)
        start_s = max(at_s, time.monotonic() + between.margin_s)
        self.late_s = start_s - at_s
        came_s = between.exchange(between.told(messages, self.version, start_s), expected_s)
        self.exchanged.append(between.counted("join", messages, before))
        return came_s
