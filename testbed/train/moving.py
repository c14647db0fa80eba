"""Weights on the move between ranks, each with what the optimizer keeps of it: the pieces that a plan has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from testbed.pipeline.collectives import Exchange
from testbed.plan.moved_weights import Seat, Stages, WeightPiece, block_elements, blocks_of, pieces, shared
from testbed.spec.workload import Workload
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

    stage_to_rank: Stages
    stages: Mapping[int, Stage]
    """Those of this rank."""
    shards: Mapping[int, Shards]
    """Of the same stages, where there are replicas."""
    optimizer: Optimizer

    def make_room(self, names: Sequence[str], steps: torch.Tensor | None) -> None:
        """Have the optimizer keep these of all that it steps, all 0, after so many steps."""
        counted = {} if steps is None else {"step": steps}
        for parameter in self.optimizer.parameters:
            kept = {name: torch.zeros_like(parameter) for name in names}
            self.optimizer.state[parameter] = kept | {name: count.clone() for name, count in counted.items()}

    def vectors(self, stage: int, elements: range, names: Sequence[str]) -> list[torch.Tensor]:
        """Some of a stage's parameters, as numbered one after the other, and what the optimizer keeps of them: of each
        run that it steps at once the parameters, then what is kept of them.

        Flat views, but for zeros in the place of what is kept of a parameter that was never stepped.
        """
        found = []
        for begin, stepped in self._stepped(stage):
            first, behind = max(elements.start - begin, 0), min(elements.stop - begin, stepped.numel())
            if first < behind:
                state = self.optimizer.state.get(stepped, {})
                every = stepped.detach(), *(state.get(name, torch.zeros_like(stepped)) for name in names)
                found += [vector.view(-1)[first:behind] for vector in every]
        return found

    def _stepped(self, stage: int) -> Iterator[tuple[int, torch.nn.Parameter]]:
        """What the optimizer steps of a stage, and where in it that begins."""
        if stage in self.shards:
            yield from zip(self.shards[stage].begins, self.shards[stage].stepped, strict=True)
            return
        begin = 0
        for parameter in self.stages[stage].layers.parameters():
            yield begin, parameter
            begin += parameter.numel()


class Move:
    """One rank's part of a move, from what it has trained to what it is to train.

    Make it on every rank, then have each `post`, and then `finish`.
    """

    def __init__(
        self,
        workload: Workload,
        before: Trained,
        after: Trained,
        exchanges: Sequence[Exchange],
        seat: Seat,
        rank_of: Callable[[Seat], int],
        streams: Streams,
    ) -> None:
        """`exchanges` as in `pieces`; `rank_of` the seats of this tensor rank.

        Raises ValueError where shards are not where the model's description has them.
        """
        self._workload, self._before, self._after = workload, before, after
        self._seat, self._rank_of, self._streams = seat, rank_of, streams
        if shared(workload):
            for trained in (before, after):
                _require_counted(workload, trained)
        every = pieces(workload, before.stage_to_rank, after.stage_to_rank, exchanges)
        self._pieces = list(enumerate(every, _FIRST_TAG))
        self._names = KEPT[workload.optimizer.kind]
        steps = next((state["step"] for state in before.optimizer.state.values() if "step" in state), None)
        after.make_room(self._names, steps)
        self._posted: list[tuple[WeightPiece, torch.Tensor, Pending]] = []

    def post(self) -> None:
        """Post the receives of what comes."""
        for tag, piece in self._pieces:
            if piece.target == self._seat != piece.source:
                places = self._vectors(self._after, piece.part.new, piece)
                buffer = torch.empty(sum(place.numel() for place in places), dtype=places[0].dtype)
                self._posted.append((piece, buffer, self._streams.receive(buffer, self._rank_of(piece.source), tag)))

    def finish(self) -> None:
        """Send what goes, keep what stays, and take in what comes.

        Raises RuntimeError when a peer is gone.
        """
        sends = []
        for tag, piece in self._pieces:
            if piece.source != self._seat:
                continue
            values = torch.cat(self._vectors(self._before, piece.part.old, piece))
            if piece.target == self._seat:
                self._unpack(values, piece)
            else:
                sends.append((values, self._streams.send(values, self._rank_of(piece.target), tag)))
        for piece, buffer, pending in self._posted:
            pending.wait()
            self._unpack(buffer, piece)
        for _, sent in sends:
            sent.wait()

    def _vectors(self, trained: Trained, stage: int, piece: WeightPiece) -> list[torch.Tensor]:
        """What a piece is in a stage before or after, in the same order in both."""
        numbers = self._workload.model.stage_layers(stage, len(trained.stage_to_rank))
        layers, within = trained.stages[stage].layers, piece.part.layers
        ahead, count = (
            sum(parameter.numel() for number in some for parameter in layers[number - numbers.start].parameters())
            for some in (range(numbers.start, within.start), within)
        )
        whole = (range(count),) if piece.elements is None else piece.elements
        every = (range(ahead + some.start, ahead + some.stop) for some in whole)
        return [vector for some in every for vector in trained.vectors(stage, some, self._names)]

    def _unpack(self, values: torch.Tensor, piece: WeightPiece) -> None:
        places = self._vectors(self._after, piece.part.new, piece)
        for place, some in zip(places, torch.split(values, [place.numel() for place in places]), strict=True):
            place.copy_(some)


def _require_counted(workload: Workload, trained: Trained) -> None:
    """Raises ValueError where a stage has other parameters than the model's description says."""
    said, spec, n_stages = block_elements(workload), workload.model, len(trained.stage_to_rank)
    for number, stage in trained.stages.items():
        first = spec.stage_layers(number, n_stages).start
        for block in blocks_of(spec, number, n_stages):
            layers = spec.stage_layers(block, spec.layers)
            has = sum(p.numel() for layer in layers for p in stage.layers[layer - first].parameters())
            if has != said[block]:
                raise ValueError(
                    f"layers {layers.start} to {layers.stop - 1} have {has} parameters, and stage_parameter_count "
                    f"says {said[block]}: shards of an optimizer are cut by that where stages move"
                )
