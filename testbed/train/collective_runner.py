"""A collective of one member as messages: those of pipeline/collectives.py, taken in and passed on while it computes.

A thread for each waits until it is there, so that messages are taken in whatever order they come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import product
from threading import Lock
from typing import NamedTuple

import torch

from testbed.pipeline.collectives import CollectiveMessage
from testbed.train.buffers import Buffers, overlapping
from testbed.train.pacing import now_s
from testbed.train.shards import Shards
from testbed.train.streams import Pending, Streams


class Received(NamedTuple):
    """A message of a collective that has come in. Times on the monotonic clock."""

    kind: int
    """As in the trace."""
    stage: int
    step: CollectiveMessage
    posted_s: float
    began_s: float
    """Somebody waited for it from here on."""
    taken_s: float


class SentCollectiveMessage(NamedTuple):
    """A message of a collective that was handed to the network, and when."""

    kind: int
    stage: int
    step: CollectiveMessage
    sent_s: float


class CollectiveLog(NamedTuple):
    """What a rank's collectives did in one iteration."""

    received: list[Received]
    sent: list[SentCollectiveMessage]


Submit = Callable[[Callable[[], None]], Future[None]]
"""Has a thread do something."""


class MemberCollective:
    """One collective of one member, for all iterations of a job; what a kind of it leaves to others does nothing."""

    buffer_bytes: int
    """Of what it sends from and receives into."""

    def post(self, iteration: int) -> None:
        """Post the receives of an iteration."""

    def use_up(self, iterations: Sequence[int]) -> list[Pending]:
        """End the receives that all members have posted for these iterations: with the shortest of messages. Returns
        what is to be waited for."""
        return []

    def attend(self, iteration: int, log: CollectiveLog, submit: Submit) -> None:
        """Have threads wait for what comes in this iteration."""

    def begin(self) -> None:
        """This member's own data is there: send what waits for nothing else."""

    def first_came_s(self) -> float:
        """When the first of what has come and is not taken in yet came; infinity where nothing has."""
        return math.inf

    def admit(self) -> None:
        """Take in what has come, and from now on whatever comes."""

    def end(self) -> None:
        """Return when all has come in; raise what went wrong."""

    def leave(self) -> None:
        """Return when all has left; raise what went wrong."""


class Membership(NamedTuple):
    """Which member this rank is, among which, and through what they send to each other."""

    member: int
    ranks: Sequence[int]
    """They hold the same stages, in the order of replicas."""
    streams: Streams


class Messages(MemberCollective):
    """A collective as messages of our own."""

    def __init__(
        self,
        kind: int,
        stage: int,
        steps: tuple[CollectiveMessage, ...],
        vector: torch.Tensor,
        shards: Shards,
        place: Membership,
        cell_elements: int,
        first_tag: int,
    ) -> None:
        """`cell_elements`: of each cell in a message, padding included; tags from `first_tag` on are its own."""
        self.kind, self.stage, self.steps, self.vector, self.shards = kind, stage, steps, vector, shards
        self.place, self.first_tag = place, first_tag
        numbers = range(len(steps))
        self.outgoing = [index for index in numbers if steps[index].source == place.member]
        self.incoming = [index for index in numbers if steps[index].target == place.member]
        self.following: dict[int, list[int]] = {index: [] for index in self.incoming}
        for index in self.outgoing:
            for before in steps[index].after:
                self.following[before].append(index)
        self.to_send: dict[int, torch.Tensor] = {}
        self.to_receive: tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]] = ({}, {})
        """Of iterations with even and odd numbers: receives are posted ahead."""
        self.memory: list[Buffers] = []
        self._take_buffers(cell_elements)
        self.buffer_bytes = sum(buffers.taken_bytes for buffers in self.memory)
        self.posted: dict[tuple[int, int], tuple[Pending, float]] = {}
        self.lock = Lock()
        self.iteration, self.log = 0, CollectiveLog([], [])
        self.ready = False
        """Whether this member's own data is there."""
        self.waits: dict[int, int] = {}
        """Outgoing message -> for how many things it still waits."""
        self.held: dict[int, float] = {}
        """Messages that have come and are not taken in yet, and when they came."""
        self.left: set[int] = set()
        self.works: list[Pending] = []
        self.futures: list[Future[None]] = []

    def _take_buffers(self, cell_elements: int) -> None:
        for cells in {self.steps[index].n_cells for index in (*self.outgoing, *self.incoming)}:
            ends = (self.outgoing, self.incoming)
            leaving, coming = ([i for i in end if self.steps[i].n_cells == cells] for end in ends)
            size, own, dtype = cells * cell_elements, cells * self.shards.size, self.vector.dtype
            memory, sent_from = overlapping(len(leaving), size, own, dtype)
            self.memory += [memory, Buffers(2 * len(coming), size, own, dtype)]
            self.to_send |= dict(zip(leaving, sent_from, strict=True))
            for buffers in self.to_receive:
                buffers |= {index: self.memory[-1].take() for index in coming}

    def _tag(self, index: int, iteration: int) -> int:
        return 2 * (self.first_tag + index) + iteration % 2

    def post(self, iteration: int) -> None:
        """As in Collective."""
        for index in self.incoming:
            buffer = self.to_receive[iteration % 2][index]
            source = self.place.ranks[self.steps[index].source]
            work = self.place.streams.receive(buffer, source, self._tag(index, iteration))
            self.posted[iteration, index] = (work, now_s())

    def use_up(self, iterations: Sequence[int]) -> list[Pending]:
        """As in Collective."""
        under_way = [work for work, _ in self.posted.values()]
        self.posted.clear()
        for iteration, index in product(iterations, self.outgoing):
            target, tag = self.place.ranks[self.steps[index].target], self._tag(index, iteration)
            under_way.append(self.place.streams.send_shortest(self.to_send[index], target, tag))
        return under_way

    def attend(self, iteration: int, log: CollectiveLog, submit: Submit) -> None:
        """As in Collective."""
        self.iteration, self.log, self.ready = iteration, log, False
        self.held, self.left = {}, set()
        # nothing is sent before the own data is there: of a gather, before the iteration begins
        self.waits = {index: len(self.steps[index].after) + 1 for index in self.outgoing}
        self.futures = [submit(partial(self._receive, index)) for index in self.incoming]

    def begin(self) -> None:
        """As in Collective."""
        with self.lock:
            self._release(self.outgoing)

    def first_came_s(self) -> float:
        """As in Collective."""
        with self.lock:
            return min(self.held.values(), default=math.inf)

    def admit(self) -> None:
        """As in Collective."""
        with self.lock:
            self.ready = True
            self._take_in()

    def _receive(self, index: int) -> None:
        """Wait for a message, then do what follows from it."""
        work, posted_s = self.posted.pop((self.iteration, index))
        began_s = now_s()
        work.wait()
        taken_s = now_s()
        with self.lock:
            self.log.received.append(Received(self.kind, self.stage, self.steps[index], posted_s, began_s, taken_s))
            self.held[index] = taken_s
            self._take_in()

    def _take_in(self) -> None:
        """Take in what has come, and send what waited for that, until nothing more follows."""
        while self.ready:
            index = next((step for step in self.held if self.left.issuperset(self.steps[step].behind)), None)
            if index is None:
                return
            del self.held[index]
            step = self.steps[index]
            mine = self.shards.of(self.vector, step.cells)
            come = self.to_receive[self.iteration % 2][index][: len(mine)]
            if step.adds:
                mine.add_(come)
            else:
                mine.copy_(come)
            self._release(self.following[index])

    def _release(self, messages: Sequence[int]) -> None:
        """One thing less that these wait for: send those that wait for nothing more."""
        for index in messages:
            self.waits[index] -= 1
            if self.waits[index]:
                continue
            step, buffer = self.steps[index], self.to_send[index]
            mine = self.shards.of(self.vector, step.cells)
            buffer[: len(mine)].copy_(mine)
            self.left.add(index)
            self.log.sent.append(SentCollectiveMessage(self.kind, self.stage, step, now_s()))
            tag = self._tag(index, self.iteration)
            self.works.append(self.place.streams.send(buffer, self.place.ranks[step.target], tag))

    def end(self) -> None:
        """As in Collective."""
        for future in self.futures:
            future.result()
        self.futures = []

    def leave(self) -> None:
        """As in Collective."""
        for work in self.works:
            work.wait()
        self.works = []
