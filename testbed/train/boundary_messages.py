"""The messages between stages, as one rank sends and takes them: their buffers, their tags, receives posted ahead.

They are the same under every schedule that has the stages on the same ranks and as many microbatches: in what order
actions are done changes neither which messages there are nor where each of them goes. So what is posted under one
schedule is taken under the next. Before a training goes on with other microbatches, posted receives are used up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from testbed.grouping import grouped
from testbed.pipeline.depend import Message
from testbed.spec.workload import Workload
from testbed.train.buffers import KeptBuffers, overlapping
from testbed.train.pacing import now_s
from testbed.train.streams import Pending
from testbed.train.training_state import TrainingState


class BoundaryMessages:
    """Of one rank. Receives are posted for two iterations, into the same buffers: no rank begins the second one before
    all have ended the first, nor writes into what it has not sent."""

    def __init__(
        self,
        state: TrainingState,
        workload: Workload,
        incoming: Sequence[Message],
        outgoing: Sequence[Message],
        kept: KeptBuffers,
    ) -> None:
        """`workload` is the state's, with the microbatches that there are now; messages are received into `kept`.

        Raises OSError when the machine has no memory for them.
        """
        self._state, self._microbatches = state, workload.microbatches
        spec = workload.model
        self.shape = spec.boundary_shape(workload.microbatch_size)
        self.elements = math.prod(self.shape)
        """Of a boundary tensor."""
        padded = -(-workload.message_bytes() // spec.element_bytes)
        dtype = torch.float32 if spec.dtype == "float32" else torch.float64
        self.payload_bytes = padded * dtype.itemsize
        self.part = math.ceil(self.elements / state.task.mesh.tp)
        """Elements of a boundary tensor that each tensor rank sends."""
        shared, ordered = state.task.receive_buffers, state.task.in_order
        numbers = shared[state.pipeline_rank] if shared else tuple(range(len(incoming)))
        self._n_received = max(numbers, default=-1) + 1
        if ordered and ordered[state.pipeline_rank] and state.streams.count == 1:
            senders = grouped((state.holder(message.stage), message) for message in incoming)
            taken = kept.take_in_order([len(each) for each in senders.values()], padded, self.part, dtype)
            each = zip(senders.values(), taken, strict=True)
            self.to_receive = {m: buffer for mine in each for m, buffer in zip(*mine, strict=True)}
        else:
            buffers = kept.take(self._n_received, padded, self.part, dtype)
            self.to_receive = {m: buffers[number] for m, number in zip(incoming, numbers, strict=True)}
        self.received = list(self.to_receive.values())
        """The buffer of each message that is received."""
        self._sending, sent = overlapping(len(outgoing), padded, self.part, dtype)
        self.to_send = dict(zip(outgoing, sent, strict=True))
        self.posted: dict[tuple[int, Message], tuple[Pending, float]] = {}
        """By iteration and message, each receive and when it was posted."""

    @property
    def buffer_bytes(self) -> int:
        """Of all: to receive into, as many as are needed at once; of those to send from the padding is counted once."""
        return self._n_received * self.payload_bytes + (self._sending.taken_bytes if self.to_send else 0)

    def tag(self, message: Message, iteration: int) -> int:
        """Unique among the messages of an iteration and its neighbours."""
        number = message.stage * self._microbatches + message.microbatch
        return (number * 2 + (message.kind == "G")) * 2 + iteration % 2

    def post(self, message: Message, iteration: int) -> None:
        """Post the receive of a message."""
        # the process group itself: the functions around it take as long as a packet
        streams = self._state.streams
        work = streams.receive(
            self.to_receive[message], self._state.holder(message.stage), self.tag(message, iteration)
        )
        self.posted[iteration, message] = (work, now_s())

    def use_up(self, holders: Sequence[int]) -> list[Pending]:
        """End the receives that are posted and will not be taken: every rank sends the shortest of messages for them.

        `holders` are the ranks of the stages that they were posted for. Returns what is to be waited for.

        All ranks are to do this, between two iterations.
        """
        under_way = [work for work, _ in self.posted.values()]
        for iteration in sorted({iteration for iteration, _ in self.posted}):
            for message, buffer in self.to_send.items():
                target, tag = holders[message.consumer], self.tag(message, iteration)
                under_way.append(self._state.streams.send_shortest(buffer, target, tag))
        self.posted.clear()
        return under_way
