"""Weights on the move between ranks, each with what the optimizer keeps of it: a flat message for each stage's part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from testbed.plan.moved_weights import StagePart, Stages, stage_parts
from testbed.spec.model import ModelSpec
from testbed.train.optimizer import Optimizer
from testbed.train.stage import Stage
from testbed.train.streams import Pending, Streams

_FIRST_TAG = 1 << 23
"""Of these messages; no other between two ranks has one as high once a training has begun."""

KEPT = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
"""Of every parameter that was stepped, as many numbers as it has; how often it was is the same of all."""


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

    def post(self, stages: dict[int, Stage], kind: str) -> None:
        """Post the receives of what comes, for these new stages and an optimizer of this kind."""
        for tag, part in self._parts:
            source, target = self._before[part.old], self._after[part.new]
            if target == self._me != source:
                parameters = list(self._of(stages[part.new], part.new, len(self._after), part))
                count = sum(parameter.numel() for parameter in parameters) * (1 + len(KEPT[kind]))
                buffer = torch.empty(count, dtype=parameters[0].dtype)
                self._posted.append((part, buffer, self._streams.receive(buffer, self._holders[source], tag)))

    def finish(
        self, old: dict[int, Stage], new: dict[int, Stage], optimizers: tuple[Optimizer, Optimizer], kind: str
    ) -> None:
        """Send what goes, keep what stays, and take what comes into the new stages and the second of the optimizers.

        Raises RuntimeError when a peer is gone.
        """
        before, after = optimizers
        sends, names = [], KEPT[kind]
        steps = next((state["step"] for state in before.state.values() if "step" in state), None)
        for tag, part in self._parts:
            source, target = self._before[part.old], self._after[part.new]
            if source != self._me:
                continue
            values = _packed(self._of(old[part.old], part.old, len(self._before), part), before, names)
            if target == self._me:
                self._unpack(values, new, part, after, names, steps)
            else:
                sends.append((values, self._streams.send(values, self._holders[target], tag)))
        for part, buffer, pending in self._posted:
            pending.wait()
            self._unpack(buffer, new, part, after, names, steps)
        for _, sent in sends:
            sent.wait()

    def _of(self, stage: Stage, number: int, n_stages: int, part: StagePart) -> Iterator[nn.Parameter]:
        """The parameters of a stage, which has that number of so many, that are in a part."""
        first = self._spec.stage_layers(number, n_stages).start
        for layer in part.layers:
            yield from stage.layers[layer - first].parameters()

    def _unpack(
        self,
        values: torch.Tensor,
        new: dict[int, Stage],
        part: StagePart,
        optimizer: Optimizer,
        names: Sequence[str],
        steps: torch.Tensor | None,
    ) -> None:
        parameters = list(self._of(new[part.new], part.new, len(self._after), part))
        sizes = [parameter.numel() for parameter in parameters for _ in range(1 + len(names))]
        pieces = iter(torch.split(values, sizes))
        with torch.no_grad():
            for parameter in parameters:
                parameter.copy_(next(pieces).view_as(parameter))
                state = {name: next(pieces).view_as(parameter).clone() for name in names}
                optimizer.state[parameter] = state | ({} if steps is None else {"step": steps.clone()})


def _packed(parameters: Iterator[nn.Parameter], optimizer: Optimizer, names: Sequence[str]) -> torch.Tensor:
    """Each with what is kept of it behind it; zeros of one that was never stepped."""
    pieces = []
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        nothing = torch.zeros(parameter.numel(), dtype=parameter.dtype)
        pieces += [parameter.detach().reshape(-1), *(state.get(name, nothing).reshape(-1) for name in names)]
    return torch.cat(pieces)
