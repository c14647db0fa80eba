"""A rank's shard of an optimizer that replicas share (ZeRO-1) as numbers one after the other, in the order that a plan
has them in (plan/shard_copies.py): of every stage the parameters that this rank steps, then what the optimizer keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from testbed.plan.state_exchange import HEADER_ELEMENTS
from testbed.train.moving import KEPT
from testbed.train.training_state import TrainingState


def pack_shard(state: TrainingState, into: torch.Tensor) -> None:
    """Write a rank's shard, and how far training has come. Raises ValueError where the plan has it of another size."""
    optimizer, steps = state.optimizer, _steps(state)
    pieces = [torch.tensor([float(state.iteration), steps], dtype=into.dtype)]
    for stepped in _stepped(state):
        pieces += [parameter.detach().reshape(-1)[:count] for parameter, count in stepped]
        for name in KEPT[state.workload.optimizer.kind]:
            for parameter, count in stepped:
                kept = optimizer.state.get(parameter, {}).get(name, torch.zeros_like(parameter.detach()))
                pieces.append(kept.reshape(-1)[:count])
    values = torch.cat(pieces)
    _require_size(values.numel(), into)
    into.copy_(values)


def unpack_shard(state: TrainingState, values: torch.Tensor) -> None:
    """Go on from what was packed of the same elements, by whichever ranks had them. What this rank does not step it
    gets by the next all-gather. Raises ValueError where the plan has the shard of another size."""
    kind, names = state.workload.optimizer.kind, KEPT[state.workload.optimizer.kind]
    every = _stepped(state)
    _require_size(HEADER_ELEMENTS + (1 + len(names)) * sum(count for each in every for _, count in each), values)
    iteration, steps = values[:HEADER_ELEMENTS].tolist()
    state.iteration, rest = int(iteration), iter(_split(values[HEADER_ELEMENTS:], every, 1 + len(names)))
    for stepped in every:
        for parameter, count in stepped:
            parameter.detach().reshape(-1)[:count] = next(rest)
            state.optimizer.state[parameter] = {"step": torch.tensor(steps)} if kind == "adamw" else {}
        for name in names:
            for parameter, count in stepped:
                kept = torch.zeros_like(parameter.detach())
                kept.view(-1)[:count] = next(rest)
                state.optimizer.state[parameter][name] = kept


Stepped = list[tuple[nn.Parameter, int]]
"""Parameters, and how many numbers of each, from the first, are a stage's: what fills up cells comes behind them."""


def _stepped(state: TrainingState) -> list[Stepped]:
    """Of every stage, what the optimizer steps."""
    found = []
    for index, stage in state.stages.items():
        parameters, shards = list(stage.layers.parameters()), state.shards.get(index)
        if shards is None:
            found.append([(parameter, parameter.numel()) for parameter in parameters])
        else:
            whole = sum(parameter.numel() for parameter in parameters)
            pairs = zip(shards.stepped, shards.begins, strict=True)
            found.append([(one, min(one.numel(), max(0, whole - begin))) for one, begin in pairs])
    return found


def _split(values: torch.Tensor, every: Sequence[Stepped], kinds: int) -> Iterator[torch.Tensor]:
    counts = [count for stepped in every for _ in range(kinds) for _, count in stepped]
    yield from torch.split(values, counts)


def _steps(state: TrainingState) -> float:
    return next((float(kept["step"]) for kept in state.optimizer.state.values() if "step" in kept), 0.0)


def _require_size(numbers: int, place: torch.Tensor) -> None:
    if numbers != place.numel():
        raise ValueError(
            f"the shard of this rank has {numbers} numbers, and stage_parameter_count says {place.numel()}: shards of "
            "an optimizer are kept, and cut anew, by that"
        )
