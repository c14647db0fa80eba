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
from testbed.train.own_shards import pack_shard, unpack_shard
from testbed.train.pacing import now_s, sleep_until
from testbed.train.streams import Pending, Streams
from testbed.train.training_state import TrainingState

_FIRST_TAG = 3 << 22
"""Of these messages; behind it the number of the rank whose state it is."""

_VERSIONS = 2


class HeldStates:
    """Of one rank. `version` says in which of the places of a state something is written, or read."""

    def __init__(
        self,
        file: int,
        rank: int,
        sizes: tuple[int, int],
        dtype: torch.dtype,
        streams: Streams,
        *,
        shards: bool = False,
    ) -> None:
        """The descriptor, which is closed, of a file with room for twice the bytes of both states, own and kept.

        `shards`: these are shards of an optimizer that replicas share (own_shards.py), not all that a rank has.
        """
        self._rank, self._streams, self._sizes, self._shards = rank, streams, sizes, shards
        with os.fdopen(file, "r+b") as opened:
            mapped = mmap.mmap(opened.fileno(), 0)
        self._whole = torch.frombuffer(mapped, dtype=dtype)
        self._posted: list[Pending] = []
        self._pieces: list[tuple[StateMessage, torch.Tensor]] = []
        """Those that are posted, and what they are received in."""

    def pack(self, state: TrainingState, version: int) -> None:
        """Write the rank's own state. Raises ValueError where there is no room for it."""
        (pack_shard if self._shards else pack)(state, self._own(version))

    def unpack(self, state: TrainingState, version: int) -> None:
        """Go on from the rank's own state. Raises ValueError as `unpack_shard`."""
        (unpack_shard if self._shards else unpack)(state, self._own(version))

    def _own(self, version: int) -> torch.Tensor:
        return self._place(version, self._rank)

    def _all(self, version: int) -> torch.Tensor:
        size = self._whole.numel() // _VERSIONS
        return self._whole[version * size : (version + 1) * size]

    def _place(self, version: int, whose: int) -> torch.Tensor:
        own, kept = (size // self._whole.element_size() for size in self._sizes)
        # a rank that keeps nobody else's has what another replica has as its own
        mine = whose == self._rank or not kept
        return self._all(version)[:own] if mine else self._all(version)[own : own + kept]

    def post(self, messages: Sequence[StateMessage], version: int) -> None:
        """Post the receives of those of these messages that are for this rank."""
        coming = [one for one in messages if one.target == self._rank != one.source]
        dtype = self._whole.dtype
        self._pieces = [
            (one, torch.empty(sum(piece.numbers for piece in one.pieces), dtype=dtype)) for one in coming if one.pieces
        ]
        places = [(one, self._place(version, one.whose)) for one in coming if not one.pieces]
        self._posted = [
            self._streams.receive(place, one.source, _FIRST_TAG + one.whose) for one, place in (*places, *self._pieces)
        ]

    def exchange(self, messages: Sequence[StateMessage], version: int, begin_s: float, spin_s: float) -> float:
        """Send those of these messages that this rank sends, at an instant; returns when all that was posted had come.
        Pieces are of the other version, and come to be in this one.

        Raises RuntimeError when a rank is gone.
        """
        own = [message for message in messages if message.source == self._rank != message.target]
        values = [self._sent(message, version) for message in own]
        if own:
            sleep_until(begin_s, spin_s)
        sends = [
            self._streams.send(sent, message.target, _FIRST_TAG + message.whose)
            for message, sent in zip(own, values, strict=True)
        ]
        for pending in self._posted:
            pending.wait()
        came_s = now_s()
        for pending in sends:
            pending.wait()
        stays = [(one, self._sent(one, version)) for one in messages if one.source == self._rank == one.target]
        for message, came in (*self._pieces, *stays):
            parts = torch.split(came, [piece.numbers for piece in message.pieces])
            for piece, part in zip(message.pieces, parts, strict=True):
                self._all(version)[piece.to : piece.to + piece.numbers] = part
        self._posted, self._pieces = [], []
        return came_s

    def _sent(self, message: StateMessage, version: int) -> torch.Tensor:
        if not message.pieces:
            return self._place(version, message.whose)
        had = self._all(1 - version)
        return torch.cat([had[piece.first : piece.first + piece.numbers] for piece in message.pieces])


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
