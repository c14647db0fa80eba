"""Weights on the move between ranks, each with what the optimizer keeps of it: a flat message for each stage's part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import nn

from testbed.plan.moved_weights import StagePart, Stages, stage_parts
from testbed.spec.model import ModelSpec
from testbed.train.optimizer import Optimizer
from testbed.train.shards import Shards
from testbed.train.stage import Stage
from testbed.train.streams import Pending, Streams

_FIRST_TAG = 1 << 23
"""Of these messages; no other between two ranks has one as high once a training has begun."""

KEPT = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""Of every parameter that was stepped, as many numbers as it has; how often it was is the same of all."""


class Trained(NamedTuple):
    """What a rank trains, before or after a move."""

    stages: Mapping[int, Stage]
    shards: Mapping[int, Shards]
    """Of the same stages, where there are replicas; each steps all parameters."""
    optimizer: Optimizer

    def make_room(self, names: Sequence[str], steps: torch.Tensor | None) -> None:
        """Have the optimizer keep these of all parameters, all 0, after so many steps."""
        counted = {} if steps is None else {"step": steps}
        for parameter in self.optimizer.parameters:
            kept = {name: torch.zeros_like(parameter) for name in names}
            self.optimizer.state[parameter] = kept | {name: count.clone() for name, count in counted.items()}

    def pieces(self, stage: int, parameters: Sequence[nn.Parameter], names: Sequence[str]) -> list[torch.Tensor]:
        """Each of these parameters of a stage with what the optimizer keeps of it behind it, flat.

        They are views, but for zeros in the place of what is kept of a parameter that was never stepped.
        """
        kept = self._kept_by_shard(stage, names) if stage in self.shards else self._kept(stage, names)
        return [piece for parameter in parameters for piece in (parameter.detach().view(-1), *kept[parameter])]

    def _kept(self, stage: int, names: Sequence[str]) -> dict[nn.Parameter, list[torch.Tensor]]:
        found = {}
        for parameter in self.stages[stage].layers.parameters():
            state = self.optimizer.state.get(parameter, {})
            found[parameter] = [state.get(name, torch.zeros_like(parameter)).view(-1) for name in names]
        return found

    def _kept_by_shard(self, stage: int, names: Sequence[str]) -> dict[nn.Parameter, list[torch.Tensor]]:
        """Where all parameters of a stage are stepped as one vector."""
        (stepped,) = self.shards[stage].stepped
        state = self.optimizer.state.get(stepped, {})
        vectors = [state.get(name, torch.zeros_like(stepped)) for name in names]
        found, begin = {}, 0
        for parameter in self.stages[stage].layers.parameters():
            behind = begin + parameter.numel()
            found[parameter] = [vector[begin:behind] for vector in vectors]
            begin = behind
        return found


class Move:
    """One pipeline rank's part of a move; `holders` are the ranks of its pipeline.

    Make it on every rank, then have each `send` with its old stages, and `finish` with its new ones.
    """

    def __init__(
        self, spec: ModelSpec, cuts: tuple[Stages, Stages], me: int, holders: Sequence[int], streams: Streams
    ) -> None:
        """`cuts` are the pipeline ranks of the stages before and after."""
        self._spec, self._me, self._holders, self._streams = spec, me, holders, streams
        self._before, self._after = cuts
        self._parts = list(enumerate(stage_parts(spec, len(self._before), len(self._after)), _FIRST_TAG))
        self._posted: list[tuple[StagePart, torch.Tensor, Pending]] = []

    def post(self, after: Trained, kind: str) -> None:
        """Post the receives of what comes, for these new stages and an optimizer of this kind."""
        for tag, part in self._parts:
            source, target = self._before[part.old], self._after[part.new]
            if target == self._me != source:
                parameters = list(self._of(after.stages[part.new], part.new, len(self._after), part))
                count = sum(parameter.numel() for parameter in parameters) * (1 + len(KEPT[kind]))
                buffer = torch.empty(count, dtype=parameters[0].dtype)
                self._posted.append((part, buffer, self._streams.receive(buffer, self._holders[source], tag)))

    def finish(self, before: Trained, after: Trained, kind: str) -> None:
        """Send what goes, keep what stays, and take in what comes.

        Raises RuntimeError when a peer is gone.
        """
        sends, names = [], KEPT[kind]
        steps = next((state["step"] for state in before.optimizer.state.values() if "step" in state), None)
        after.make_room(names, steps)
        for tag, part in self._parts:
            source, target = self._before[part.old], self._after[part.new]
            if source != self._me:
                continue
            values = self._packed(before, part, names)
            if target == self._me:
                self._unpack(values, after, part, names)
            else:
                sends.append((values, self._streams.send(values, self._holders[target], tag)))
        for part, buffer, pending in self._posted:
            pending.wait()
            self._unpack(buffer, after, part, names)
        for _, sent in sends:
            sent.wait()

    def _of(self, stage: Stage, number: int, n_stages: int, part: StagePart) -> Iterator[nn.Parameter]:
        """The parameters of a stage, which has that number of so many, that are in a part."""
        first = self._spec.stage_layers(number, n_stages).start
        for layer in part.layers:
            yield from stage.layers[layer - first].parameters()

    def _packed(self, before: Trained, part: StagePart, names: Sequence[str]) -> torch.Tensor:
        parameters = list(self._of(before.stages[part.old], part.old, len(self._before), part))
        return torch.cat(before.pieces(part.old, parameters, names))

    def _unpack(self, values: torch.Tensor, after: Trained, part: StagePart, names: Sequence[str]) -> None:
        parameters = list(self._of(after.stages[part.new], part.new, len(self._after), part))
        places = after.pieces(part.new, parameters, names)
        for place, piece in zip(places, torch.split(values, [place.numel() for place in places]), strict=True):
            place.copy_(piece)
