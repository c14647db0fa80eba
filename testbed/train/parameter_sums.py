"""What a rank tells of the parameters and gradients that it keeps, so that they can be held against one process's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from testbed.train.assignment import ALL, GRADIENT, IN_USE, Fingerprint
from testbed.train.projections import projections, squared
from testbed.train.shards import Shards
from testbed.train.stage import Stage


class Held(NamedTuple):
    """One stage of a rank."""

    stage: Stage
    first_layer: int
    """Its global index."""
    shards: Shards | None
    """Where there are replicas."""
    replica: int
    tensor_rank: int


def gradient_squares(held: Held) -> dict[int, float]:
    """The sum of squares of every layer's gradients, by global layer index, in double precision.

    Only of the shards of this replica, where there are any, and of what tensor ranks share. The root of their sum
    over all replicas and tensor ranks is what losses do not show: Adam's steps hardly depend on the size of gradients.
    """
    stage, share = held.stage, held.stage.share
    squares = {held.first_layer + index: 0.0 for index in range(len(stage.layers))}
    for layer, _, parameter, kept in _parts(stage, held.shards):
        if parameter.grad is not None and (share is None or share.counted(parameter)):
            squares[held.first_layer + layer] += squared(_only(parameter.grad, kept))
    return squares


def named_gradients(held: Held) -> dict[str, torch.Tensor]:
    """A copy of every gradient of a stage as "layer.parameter".

    Of whole parameters; zero where another replica or tensor rank keeps it.
    """
    share, found = held.stage.share, {}
    for layer, name, parameter, kept in _parts(held.stage, held.shards):
        if parameter.grad is not None:
            mine = _only(parameter.grad, kept)
            whole = mine.clone() if share is None else share.whole(parameter, mine)
            found[f"{held.first_layer + layer}.{name}"] = whole
    return found


def fingerprints(held: Held, iteration: int, what: str) -> list[Fingerprint]:
    """Each kept by one replica only, or by every replica for itself; the same for tensor ranks.

    `what`: the GRADIENT that the optimizer is about to use here, weights AFTER_STEP as far as this rank steps them, or
    those IN_USE, that were computed with, those that other replicas have stepped among them.
    """
    shards = held.shards if held.shards is not None and held.shards.sharded and what != IN_USE else None
    share, found = held.stage.share, []
    for layer, name, parameter, kept in _parts(held.stage, shards):
        values = parameter.grad if what == GRADIENT else parameter
        if values is None:
            continue
        mine, split = _only(values.detach(), kept), share is not None and parameter in share.slices
        count = parameter.numel() if kept is None else int(kept.sum())
        whole = share.whole(parameter, mine) if share is not None and split else mine
        label = f"{held.first_layer + layer}.{name}"
        copy = ALL if shards is not None else held.replica, ALL if split else held.tensor_rank
        found.append(Fingerprint(iteration, what, label, *copy, count, squared(mine), projections(label, whole)))
    return found


def _only(values: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """With zeros where they are not kept, whatever is there."""
    values = values.detach()
    return values if kept is None else torch.where(kept, values, torch.zeros_like(values))


def _parts(stage: Stage, shards: Shards | None) -> Iterator[tuple[int, str, nn.Parameter, torch.Tensor | None]]:
    """(layer, parameter's name, parameter, which of its elements are kept here; None: all of them)."""
    begin = 0
    for index, layer in enumerate(stage.layers):
        for name, parameter in layer.named_parameters():
            kept = None
            if shards is not None:
                kept = torch.zeros_like(parameter, dtype=torch.bool)
                for ends in shards.own_ends:
                    low, high = (min(max(end - begin, 0), parameter.numel()) for end in ends)
                    kept.view(-1)[low:high] = True
            begin += parameter.numel()
            yield index, name, parameter, kept
