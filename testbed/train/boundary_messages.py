"""The messages between stages, as one rank sends and takes them: their buffers, their tags, receives posted ahead.

They are the same under every schedule that has the stages on the same ranks and as many microbatches: in what order
actions are done changes neither which messages there are nor where each of them goes. So what is posted under one
schedule is taken under the next. Before a training goes on with other microbatches, posted receives are used up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from testbed.pipeline.depend import Message
from testbed.spec.workload import Workload
from testbed.train.buffers import Buffers
from testbed.train.pacing import now_s
from testbed.train.streams import Pending
from testbed.train.training_state import TrainingState


class BoundaryMessages:
    """Of one rank in two iterations: one under way, and the next."""

    def __init__(
        self, state: TrainingState, workload: Workload, incoming: Sequence[Message], outgoing: Sequence[Message]
    ) -> None:
        """`workload` is the state's, with the microbatches that there are now.

        Raises OSError when the machine has no memory for their buffers.
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
        self._buffers = Buffers(2 * (len(incoming) + len(outgoing)), padded, self.part, dtype)
        self.to_receive = [{m: self._buffers.take() for m in incoming} for _ in range(2)]
        self.to_send = [{m: self._buffers.take() for m in outgoing} for _ in range(2)]
        """By parity of the iteration."""
        self.posted: dict[tuple[int, Message], tuple[Pending, float]] = {}
        """By iteration and message, each receive and when it was posted."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All buffers."""
        return [buffer for some in (*self.to_receive, *self.to_send) for buffer in some.values()]

    @property
    def buffer_bytes(self) -> int:
        """Of all buffers, padding counted in each."""
        return self._buffers.taken_bytes

    def tag(self, message: Message, iteration: int) -> int:
        """Unique among the messages of an iteration and its neighbours."""
        number = message.stage * self._microbatches + message.microbatch
        return (number * 2 + (message.kind == "G")) * 2 + iteration % 2

    def post(self, message: Message, iteration: int) -> None:
        """Post the receive of a message."""
        buffer = self.to_receive[iteration % 2][message]
        # the process group itself: the functions around it take as long as a packet
        work = self._state.streams.receive(buffer, self._state.holder(message.stage), self.tag(message, iteration))
        self.posted[iteration, message] = (work, now_s())

    def use_up(self, holders: Sequence[int]) -> None:
        """End the receives that are posted and will not be taken: every rank sends the shortest of messages for them.

        `holders` are the ranks of the stages that they were posted for.

        All ranks are to do this, between two iterations. Raises RuntimeError when one of them is gone.
        """
        sends = []
        for iteration in sorted({iteration for iteration, _ in self.posted}):
            for message, buffer in self.to_send[iteration % 2].items():
                target, tag = holders[message.consumer], self.tag(message, iteration)
                sends.append(self._state.streams.send(buffer[: self._state.streams.count], target, tag))
        for work, _ in self.posted.values():
            work.wait()
        for send in sends:
            send.wait()
        self.posted.clear()
