"""The messages between stages, as one rank sends and takes them: their buffers, their tags, receives posted ahead.

They are the same under every schedule that has the stages on the same ranks: in what order actions are done changes
neither which messages there are nor where each of them goes. So what is posted under one schedule is taken under the
next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from testbed.pipeline.depend import Message
from testbed.train.buffers import Buffers
from testbed.train.pacing import now_s
from testbed.train.streams import Pending
from testbed.train.training_state import TrainingState


class BoundaryMessages:
    """Of one rank in two iterations: one under way, and the next."""

    def __init__(self, state: TrainingState, incoming: Sequence[Message], outgoing: Sequence[Message]) -> None:
        """Raises OSError when the machine has no memory for their buffers."""
        self._state = state
        workload, spec = state.workload, state.workload.model
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
        number = message.stage * self._state.workload.microbatches + message.microbatch
        return (number * 2 + (message.kind == "G")) * 2 + iteration % 2

    def post(self, message: Message, iteration: int) -> None:
        """Post the receive of a message."""
        buffer = self.to_receive[iteration % 2][message]
        # the process group itself: the functions around it take as long as a packet
        work = self._state.streams.receive(buffer, self._state.holder(message.stage), self.tag(message, iteration))
        self.posted[iteration, message] = (work, now_s())
