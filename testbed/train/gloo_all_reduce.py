"""Gloo's own all-reduce through torch, for comparison with the collectives that are sent message by message."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import timedelta

import torch
import torch.distributed as dist

from testbed.pipeline.collectives import CollectiveMessage
from testbed.train.collective_runner import CollectiveLog, MemberCollective, Received, SentCollectiveMessage, Submit
from testbed.train.pacing import now_s


class GlooGroups:
    """Gloo's groups of some of the ranks: a connection between any two of them, so each is made once."""

    def __init__(self, timeout_s: float, joining: Callable[[], AbstractContextManager[None]]) -> None:
        """`timeout_s`: of every wait in them. They are joined in what `joining` makes."""
        self._timeout, self._joining = timedelta(seconds=timeout_s), joining
        self._of: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        """The group of these ranks, which all ask for it in the same order of groups."""
        if ranks not in self._of:
            with self._joining():
                self._of[ranks] = dist.new_group(list(ranks), self._timeout, use_local_synchronization=True)
        return self._of[ranks]


class AllReduce(MemberCollective):
    """One all-reduce of one member: what stands for it in the trace is the last message that is predicted.

    Gloo posts its receives itself, takes in what comes, and who has all has sent all.
    """

    def __init__(
        self,
        kind: int,
        stage: int,
        steps: tuple[CollectiveMessage, ...],
        vector: torch.Tensor,
        member: int,
        elements: int,
        group: dist.ProcessGroup,
    ) -> None:
        """`elements` go through it, padding included; `group` has the members and no others."""
        self.kind, self.stage, self.vector, self.group = kind, stage, vector, group
        self.last = [step for step in steps if step.target == member][-1]
        self.mine = [step for step in steps if step.source == member]
        self.buffer = torch.zeros(elements, dtype=vector.dtype)
        self.buffer_bytes = self.buffer.nbytes
        self.begun: Future[dist.Work] = Future()
        self.future: Future[None] | None = None
        self.log = CollectiveLog([], [])

    def attend(self, iteration: int, log: CollectiveLog, submit: Submit) -> None:
        """As in Collective."""
        self.log, self.begun = log, Future()
        self.future = submit(self._receive)

    def begin(self) -> None:
        """As in Collective."""
        self.buffer[: len(self.vector)].copy_(self.vector)
        now = now_s()
        self.log.sent.extend(SentCollectiveMessage(self.kind, self.stage, step, now) for step in self.mine)
        self.begun.set_result(self.group.allreduce([self.buffer]))

    def _receive(self) -> None:
        work, began_s = self.begun.result(), now_s()
        work.wait()
        self.vector.copy_(self.buffer[: len(self.vector)])
        self.log.received.append(Received(self.kind, self.stage, self.last, began_s, began_s, now_s()))

    def end(self) -> None:
        """As in Collective."""
        if self.future is not None:
            self.future.result()
