"""What a rank's tensors take, in bytes: every piece of memory once, however many tensors look at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import torch

from testbed.pipeline.memory import RankBytes
from testbed.train.optimizer import Optimizer
from testbed.train.stage import Stage


def tensor_bytes(tensors: Iterable[torch.Tensor], excluding: Iterable[torch.Tensor] = ()) -> int:
    """Bytes of the memory behind tensors, without what is behind others."""
    counted = {tensor.untyped_storage().data_ptr() for tensor in excluding}
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in counted:
            counted.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def in_flight(stage: Stage) -> Iterator[torch.Tensor]:
    """All that a stage keeps of its microbatches: layers' inputs and outputs, what their graphs saved, products."""
    for state in stage.in_flight.values():
        for tensor in (state.value, state.targets, state.gradient, *state.inputs, *state.outputs):
            if tensor is not None:
                yield tensor
        for output in state.outputs:
            yield from saved(output)
        for products in state.products:
            for product in products:
                yield product.input
                yield product.output_gradient


def saved(output: torch.Tensor) -> Iterator[torch.Tensor]:
    """What the graph behind a tensor has saved for its backward."""
    nodes, seen = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [before for before, _ in node.next_functions]
        kept = [getattr(node, name) for name in _names_of_saved(type(node))] + list(getattr(node, "saved_tensors", ()))
        yield from (value for value in kept if isinstance(value, torch.Tensor))


@cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    """Of a kind of autograd's nodes, the attributes that hold what it has saved."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def optimizer_tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The states of an optimizer."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


class Memory:
    """The memory of one rank; counting takes about a millisecond."""

    def __init__(self, stages: Sequence[Stage], optimizer: Optimizer, messages: Sequence[torch.Tensor]) -> None:
        """`messages` are the tensors of those buffers that activations may look at."""
        self._stages, self._optimizer, self._messages = stages, optimizer, messages

    def activations(self) -> int:
        """Bytes of what microbatches in flight keep now; what came in a message is a buffer's."""
        held = (tensor for stage in self._stages for tensor in in_flight(stage))
        return tensor_bytes(held, [*self._parameters(), *self._messages])

    def of_rank(self, activations: float, buffers: int) -> RankBytes:
        """Everything, with what activations took at their most, and all buffers; after a step of the optimizer."""
        parameters = self._parameters()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return RankBytes(
            activations,
            tensor_bytes(parameters),
            tensor_bytes(gradients),
            tensor_bytes(optimizer_tensors(self._optimizer)),
            buffers,
        )

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for stage in self._stages for parameter in stage.layers.parameters()]
