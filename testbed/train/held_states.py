"""States in the memory of a rank: its own as it was saved last, and that of the rank whose neighbour it is.

That memory is a file without a name that the launcher has made, in this node's share of the machine's memory: it stays
where workers are replaced, and goes with a node that fails. It has room for each state twice, so that what was saved
before stays whole while it is saved again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from testbed.plan.state_exchange import HEADER_ELEMENTS, StateMessage
from testbed.train.moving import KEPT
from testbed.train.pacing import now_s, sleep_until
from testbed.train.streams import Pending, Streams
from testbed.train.training_state import TrainingState

_FIRST_TAG = 3 << 22
"""Of these messages; behind it the number of the rank whose state it is."""

_VERSIONS = 2


class HeldStates:
    """Of one rank. `version` says in which of the places of a state something is written, or read."""

    def __init__(self, file: int, rank: int, sizes: tuple[int, int], dtype: torch.dtype, streams: Streams) -> None:
        """The descriptor, which is closed, of a file of twice the bytes of both states, own and kept."""
        self._rank, self._streams, self._sizes = rank, streams, sizes
        with os.fdopen(file, "r+b") as opened:
            mapped = mmap.mmap(opened.fileno(), _VERSIONS * sum(sizes))
        self._whole = torch.frombuffer(mapped, dtype=dtype)
        self._posted: list[Pending] = []

    def own(self, version: int) -> torch.Tensor:
        """The rank's own state."""
        return self._place(version, self._rank)

    def _place(self, version: int, whose: int) -> torch.Tensor:
        own, kept = (size // self._whole.element_size() for size in self._sizes)
        first = version * (own + kept)
        # a rank that keeps nobody else's has what another replica has as its own
        mine = whose == self._rank or not kept
        return self._whole[first : first + own] if mine else self._whole[first + own :][:kept]

    def post(self, messages: Sequence[StateMessage], version: int) -> None:
        """Post the receives of those of these messages that are for this rank."""
        self._posted = [
            self._streams.receive(self._place(version, message.whose), message.source, _FIRST_TAG + message.whose)
            for message in messages
            if message.target == self._rank
        ]

    def exchange(self, messages: Sequence[StateMessage], version: int, begin_s: float, spin_s: float) -> float:
        """Send those of these messages that this rank sends, at an instant; returns when all that was posted had come.

        Raises RuntimeError when a rank is gone.
        """
        own = [message for message in messages if message.source == self._rank]
        if own:
            sleep_until(begin_s, spin_s)
        sends = [
            self._streams.send(self._place(version, message.whose), message.target, _FIRST_TAG + message.whose)
            for message in own
        ]
        for pending in self._posted:
            pending.wait()
        came_s = now_s()
        for sent in sends:
            sent.wait()
        self._posted = []
        return came_s


def pack(state: TrainingState, into: torch.Tensor) -> None:
    """Write weights, optimizer and how far training has come. Raises ValueError where there is no room for that."""
    optimizer, names = state.optimizer, KEPT[state.workload.optimizer.kind]
    pieces = list(_weights(state))
    for parameters, count in _stepped(state):
        for name in names:
            each = [optimizer.state.get(p, {}).get(name, torch.zeros_like(p.detach())) for p in parameters]
            pieces.append(torch.cat([one.reshape(-1) for one in each])[:count])
    steps = next((float(kept["step"]) for kept in optimizer.state.values() if "step" in kept), 0.0)
    count = HEADER_ELEMENTS + sum(piece.numel() for piece in pieces)
    if count > into.numel():
        raise ValueError(
            f"the state of this rank has {count} numbers, and its message room for {into.numel()}: let the model's "
            "stage_parameter_count say it, or with --checkpoint a larger state="
        )
    into[:HEADER_ELEMENTS] = torch.tensor([float(state.iteration), steps])
    first = HEADER_ELEMENTS
    for piece in pieces:
        into[first : first + piece.numel()] = piece.detach().reshape(-1)
        first += piece.numel()


def unpack(state: TrainingState, values: torch.Tensor) -> None:
    """Go on from what `pack` wrote, of the same task and rank; where every replica keeps the whole of what the
    optimizer does, of a rank of the same stages in a job of any number of replicas."""
    optimizer, kind, first = state.optimizer, state.workload.optimizer.kind, HEADER_ELEMENTS
    iteration, steps = values[:HEADER_ELEMENTS].tolist()
    state.iteration = int(iteration)

    def take(piece: torch.Tensor) -> torch.Tensor:
        nonlocal first
        first += piece.numel()
        return piece.copy_(values[first - piece.numel() : first].view_as(piece))

    for weights in _weights(state):
        take(weights)  # in place: shards are views of them
    for parameters, count in _stepped(state):
        for parameter in parameters:
            optimizer.state[parameter] = {"step": torch.tensor(steps)} if kind == "adamw" else {}
        for name in KEPT[kind]:
            sizes = [parameter.numel() for parameter in parameters]
            whole = torch.zeros(sum(sizes), dtype=values.dtype)
            take(whole[:count])
            for parameter, kept in zip(parameters, torch.split(whole, sizes), strict=True):
                optimizer.state[parameter][name] = kept.view_as(parameter).clone()


def _stepped(state: TrainingState) -> Iterator[tuple[list[nn.Parameter], int]]:
    """Of every stage, what the optimizer steps, and how many numbers of it there are: those of the stage's parameters,
    without what fills up cells, or a replica's shards."""
    for index, stage in state.stages.items():
        parameters, shards = list(stage.layers.parameters()), state.shards.get(index)
        if shards is None:
            yield parameters, sum(parameter.numel() for parameter in parameters)
        else:
            of = shards.stepped if shards.sharded else parameters
            yield shards.stepped, sum(parameter.numel() for parameter in of)


def _weights(state: TrainingState) -> Iterator[torch.Tensor]:
    for stage in state.stages.values():
        yield from stage.layers.state_dict().values()
