"""Shards of an optimizer that replicas share, in memory, in a lab: each with its own rank and in the next replica, so
that who is left can go on. As in survivors_memory.py memory outlives workers, and goes with the replica that is lost.
"""

from __future__ import annotations

import time
from dataclasses import replace

from testbed.goodput.elastic_training import copy_messages, cut_anew_messages
from testbed.plan.plan import Case, Plan
from testbed.plan.shard_copies import Replicas, held_bytes
from testbed.plan.state_exchange import HEADER_ELEMENTS
from testbed.planning.fewer_replicas import with_replicas
from testbed.session.loop import Loop
from testbed.session.state_exchanges import CarriedBytes, MemoryOfWorkers
from testbed.session.survivors_memory import SurvivorsMemory
from testbed.train.protocol import FailAt, Remember


class ShardsMemory(SurvivorsMemory):
    """Of the only job of a plan, while a case is trained. A context manager: leaving it frees the memory."""

    def __init__(self, plan: Plan, case: Case, loop: Loop, workers: MemoryOfWorkers, links: CarriedBytes) -> None:
        # one shard and the copy of another one have no more than a replica by itself has, but for one more header
        header = HEADER_ELEMENTS * plan.jobs[0].workload.model.element_bytes
        super().__init__(plan, case, loop, workers, links, room=header)
        self._kept_by: Replicas = ()
        self.began_s = 0.0
        """The instant at which copies were sent last."""

    def copy(self, there: Replicas, fails: FailAt | None, expected_s: float) -> float:
        """Have every rank of these replicas keep its shard, as it is between two iterations, and send it to the next
        replica; returns how long after the beginning (`began_s`) all copies had come.

        `fails` has workers end so long after it. Raises RunFailed, also where workers end.
        """
        messages, between = copy_messages(self._plan, self._case, there), self._between(there)
        before = between.post(messages, 1 - self.version)
        self.began_s = time.monotonic() + between.margin_s
        failing = None if fails is None else replace(fails, at_s=self.began_s + fails.at_s)
        told = between.told(messages, 1 - self.version, self.began_s)
        came_s = between.exchange(replace(told, packs=True, fails=failing), expected_s)
        if failing is None:
            self.exchanged.append(between.counted("save", messages, before))
            self.version, self._kept_by = 1 - self.version, there
        return max(0.0, came_s - self.began_s) if messages else 0.0

    def send(self, there: Replicas, joining: Replicas, at_s: float, expected_s: float) -> float:
        """Have shards cut anew among these replicas, from an instant on, or as soon after it as can be; returns when
        each was in two memories again. Raises RunFailed."""
        messages = cut_anew_messages(self._plan, self._case, there, joining, self._kept_by)
        between = self._between(there)
        before = between.post(messages, 1 - self.version)
        start_s = max(at_s, time.monotonic() + between.margin_s)
        self.late_s = start_s - at_s
        came_s = between.exchange(between.told(messages, 1 - self.version, start_s), expected_s)
        self.exchanged.append(between.counted("cut anew", messages, before))
        self.version, self._kept_by = 1 - self.version, there
        return came_s if any(one.source != one.target for one in messages) else start_s

    def _told(self, there: Replicas) -> Remember:
        (job,) = with_replicas(self._plan, self._case, there)[0].jobs
        sizes = held_bytes(job, self._case.jobs[0].stage_to_rank)
        return Remember(sizes, job.workload.model.element_bytes, shards=True)
