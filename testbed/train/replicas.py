"""What the replicas of a stage exchange (ZeRO-1): parameters gathered, gradients reduced, each keeps a shard.

Every member steps the optimizer for its own shard only. A thread for each collective takes messages as they come and
passes on what follows from them, while the rank computes; messages are those of pipeline/collectives.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from testbed.pipeline.collectives import Step, ring_all_gather, ring_reduce_scatter
from testbed.trace.tables import ALL_GATHER, REDUCE_SCATTER
from testbed.train.buffers import Buffers
from testbed.train.pacing import now_s


class Shards:
    """The parameters of a stage and their gradients, each as one vector cut into equal shards, one for each member."""

    def __init__(self, parameters: Sequence[nn.Parameter], members: int, own: int) -> None:
        """The parameters, and their gradients, become views of the vectors. `own`: the shard that is kept up here."""
        self.size = math.ceil(sum(p.numel() for p in parameters) / members)
        self.values = torch.zeros(members * self.size, dtype=parameters[0].dtype)
        self.gradients = torch.zeros_like(self.values)
        begin = 0
        for parameter in parameters:
            mine = slice(begin, begin + parameter.numel())
            self.values[mine] = parameter.detach().reshape(-1)
            parameter.data = self.values[mine].view_as(parameter)
            parameter.grad = self.gradients[mine].view_as(parameter)
            begin += parameter.numel()
        self.own = nn.Parameter(self.of(self.values, own))
        self.own.grad = self.of(self.gradients, own)
        self.own_ends = (own * self.size, (own + 1) * self.size)
        """Its first element, of those of all parameters one after the other, and the one behind its last."""

    def of(self, vector: torch.Tensor, shard: int) -> torch.Tensor:
        """A shard of one of the vectors, as a view."""
        return vector[shard * self.size : (shard + 1) * self.size]


class Received(NamedTuple):
    """A message of a collective that has come in. Times on the monotonic clock."""

    kind: int
    """As in the trace."""
    stage: int
    step: Step
    posted_s: float
    began_s: float
    """Somebody waited for it from here on."""
    taken_s: float


class Sent(NamedTuple):
    """A message of a collective that was handed to the network, and when."""

    kind: int
    stage: int
    step: Step
    sent_s: float


class Log(NamedTuple):
    """What a rank's collectives did in one iteration."""

    received: list[Received]
    sent: list[Sent]


class _Collective:
    """One collective of one member, for all iterations of a job."""

    def __init__(
        self,
        kind: int,
        stage: int,
        steps: tuple[Step, ...],
        vector: torch.Tensor,
        shards: Shards,
        member: int,
        ranks: Sequence[int],
        buffers: Buffers,
        group: dist.ProcessGroup,
    ) -> None:
        self.kind, self.stage, self.ranks, self.group = kind, stage, ranks, group
        self.vector, self.shards = vector, shards
        numbered = list(enumerate(steps))
        self.outgoing = [(index, step) for index, step in numbered if step.source == member]
        self.incoming = [(index, step) for index, step in numbered if step.target == member]
        self.n_steps = len(steps)
        self.buffers = [{index: buffers.take() for index, _ in self.incoming + self.outgoing} for _ in range(2)]
        self.posted: dict[tuple[int, int], tuple[dist.Work, float]] = {}
        self.ready = Event()
        """Set when this member's own data is there."""

    def _tag(self, index: int, iteration: int) -> int:
        """Unique among the collectives of an iteration and its neighbours; replicas exchange nothing else."""
        return ((self.stage * 2 + (self.kind == ALL_GATHER)) * self.n_steps + index) * 2 + iteration % 2

    def post(self, iteration: int) -> None:
        """Post the receives of an iteration."""
        for index, step in self.incoming:
            buffer = self.buffers[iteration % 2][index]
            work = self.group.recv([buffer], self.ranks[step.source], self._tag(index, iteration))
            self.posted[iteration, index] = (work, now_s())

    def begin(self, iteration: int, log: Log) -> list[dist.Work]:
        """This member's own data is there: send what waits for nothing else."""
        works = [self._send(index, step, iteration, log) for index, step in self.outgoing if not step.after]
        self.ready.set()
        return works

    def follow(self, iteration: int, log: Log) -> list[dist.Work]:
        """Take every message as it comes, send what follows from it; returns when the last one is taken."""
        works, come = [], set()
        for index, step in self.incoming:
            work, posted_s = self.posted.pop((iteration, index))
            began_s = now_s()
            work.wait()
            log.received.append(Received(self.kind, self.stage, step, posted_s, began_s, now_s()))
            self.ready.wait()
            come.add(index)
            mine = self.shards.of(self.vector, step.shard)
            other = self.buffers[iteration % 2][index][: self.shards.size]
            if self.kind == ALL_GATHER:
                mine.copy_(other)
            else:
                mine.add_(other)
            works += [
                self._send(following, onward, iteration, log)
                for following, onward in self.outgoing
                if index in onward.after and come.issuperset(onward.after)
            ]
        self.ready.clear()
        return works

    def _send(self, index: int, step: Step, iteration: int, log: Log) -> dist.Work:
        buffer = self.buffers[iteration % 2][index]
        buffer[: self.shards.size].copy_(self.shards.of(self.vector, step.shard))
        log.sent.append(Sent(self.kind, self.stage, step, now_s()))
        return self.group.send([buffer], self.ranks[step.target], self._tag(index, iteration))


class Replicas:
    """All collectives of one rank: a gather and a reduction for each of its stages."""

    def __init__(
        self, stages: dict[int, Shards], member: int, ranks: Sequence[int], elements: int, group: dist.ProcessGroup
    ) -> None:
        """`ranks` hold the same stages, in the order of replicas; `elements` are in each message, padding included."""
        members = len(ranks)
        dtype = next(iter(stages.values())).values.dtype
        largest = max(shards.size for shards in stages.values())
        gathers, reductions = ring_all_gather(members), ring_reduce_scatter(members)
        ends = [member in (step.source, step.target) for step in (*gathers, *reductions)]
        self.buffers = Buffers(2 * len(stages) * sum(ends), elements, largest, dtype)
        self.stages, self.member = stages, member
        self.gathers, self.reductions = {}, {}
        for stage, shards in stages.items():
            place = (shards, member, ranks, self.buffers, group)
            self.gathers[stage] = _Collective(ALL_GATHER, stage, gathers, shards.values, *place)
            self.reductions[stage] = _Collective(REDUCE_SCATTER, stage, reductions, shards.gradients, *place)
        self.threads = ThreadPoolExecutor(2 * len(stages))
        self.log = Log([], [])
        self.sends: list[dist.Work] = []
        self.following: dict[tuple[int, int], Future[list[dist.Work]]] = {}
        """(kind, stage) -> the collective under way."""

    def post(self, iteration: int) -> None:
        """Post the receives of an iteration."""
        for collective in (*self.gathers.values(), *self.reductions.values()):
            collective.post(iteration)

    def attend(self, iteration: int) -> None:
        """Have threads wait for an iteration's messages, before it begins."""
        self.log = Log([], [])
        for collective in (*self.gathers.values(), *self.reductions.values()):
            future = self.threads.submit(collective.follow, iteration, self.log)
            self.following[collective.kind, collective.stage] = future

    def gather(self, iteration: int) -> None:
        """The iteration begins: send the own shard of every stage, in the order of stages."""
        for collective in self.gathers.values():
            self.sends += collective.begin(iteration, self.log)

    def wait_for(self, stage: int) -> None:
        """Return when all parameters of a stage are there; at once if they have been waited for."""
        self._end(ALL_GATHER, stage)

    def reduce(self, stage: int, iteration: int) -> None:
        """The gradients of a stage are computed: send what of them belongs to others."""
        self.sends += self.reductions[stage].begin(iteration, self.log)

    def end(self) -> Log:
        """Wait until all that is under way has come in and has left; returns what happened in this iteration."""
        for kind, stage in list(self.following):
            self._end(kind, stage)
        for work in self.sends:
            work.wait()
        self.sends.clear()
        return self.log

    def _end(self, kind: int, stage: int) -> None:
        future = self.following.pop((kind, stage), None)
        if future is not None:
            self.sends += future.result()

    def close(self) -> None:
        """End the threads."""
        self.threads.shutdown()
