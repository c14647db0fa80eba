"""States of ranks in each other's memory, in a lab: memory that outlives workers, and what goes over the links for it.

What a rank holds is a file without a name, of which this process has a descriptor: workers that are replaced find it
as it was. That of a rank that fails is closed, so that the kernel frees it, and its successor gets an empty one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace

from testbed.goodput.spans import Keeping
from testbed.plan.plan import Case, Plan
from testbed.plan.state_exchange import (
    StateTraffic,
    neighbours,
    restoring,
    saving,
    state_bytes,
    state_traffic,
)
from testbed.session import deadlines
from testbed.session.loop import Loop
from testbed.session.state_exchanges import CarriedBytes, MemoryOfWorkers, StateExchange, StateExchanges, empty_memory
from testbed.train.protocol import FailAt, Remember


class NeighbourMemory:
    """Of the only job of a plan, while a case is trained. A context manager: leaving it frees the memory."""

    def __init__(
        self, plan: Plan, case: Case, keeping: Keeping, loop: Loop, workers: MemoryOfWorkers, links: CarriedBytes
    ) -> None:
        """`keeping` has what exchanges should take."""
        assert plan.recovery is not None
        assert plan.recovery.checkpoints is not None
        assert plan.recovery.checkpoints.memory is not None
        (self._job,) = plan.jobs
        self._plan, self._case, self._keeping = plan, case, keeping
        self._loop, self._workers = loop, workers
        self._between = StateExchanges(plan, case, loop, links)
        self._sizes = state_bytes(self._job, case, plan.recovery.checkpoints.memory)
        keeps = {to: rank for rank, to in enumerate(neighbours(self._job.mesh))}
        self._held = tuple((size, self._sizes[keeps[rank]]) for rank, size in enumerate(self._sizes))
        self._files = [empty_memory(rank, sum(sizes)) for rank, sizes in enumerate(self._held)]
        self.version = 0
        """Of the states that are whole."""
        self.exchanged: list[StateExchange] = []
        """Of those that came to their end, in order."""
        self.began_s = 0.0
        """The instant at which the last checkpoint began."""
        self.late_s = 0.0
        """So long after its instant what a restart sends began, since workers had just connected."""

    def __enter__(self) -> NeighbourMemory:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            os.close(file)

    def hand_over(self, lost: Collection[int] = ()) -> None:
        """Give workers, that have just connected, their memory; of those that are `lost` an empty one. Raises
        RunFailed."""
        for rank in lost:
            os.close(self._files[rank])
            self._files[rank] = empty_memory(rank, sum(self._held[rank]))
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
        before = self._between.post(messages, 1 - self.version)
        self.began_s = time.monotonic() + self._between.margin_s
        begins(self.began_s)
        failing = None if fails is None else replace(fails, at_s=self.began_s + fails.at_s)
        told = self._between.told(messages, 1 - self.version, self.began_s + slot_s)
        came_s = self._between.exchange(replace(told, packs=True, fails=failing), slot_s + self._keeping.send_s)
        self.exchanged.append(self._between.counted("save", messages, before))
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
            self.late_s = max(0.0, time.monotonic() - at_s)
            time.sleep(max(0.0, at_s - time.monotonic()))
            return time.monotonic()
        before = self._between.post(messages, self.version)
        start_s = max(at_s, time.monotonic() + self._between.margin_s)
        self.late_s = start_s - at_s
        told = self._between.told(messages, self.version, start_s)
        came_s = self._between.exchange(told, self._keeping.send_again_s(lost) or 0.0)
        self.exchanged.append(self._between.counted("restore", messages, before))
        return came_s

    def traffic_of(self, count: int) -> tuple[StateTraffic, ...]:
        """Per direction, what so many checkpoints bring."""
        each = state_traffic(self._plan, self._case, saving(self._job.mesh, self._sizes))
        return tuple(StateTraffic(count * one.wire_bytes, count * one.messages) for one in each)
