"""The same training in one process without a pipeline: what every schedule's losses and gradients must equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from testbed.pipeline.ir import WHOLE
from testbed.spec.workload import OptimizerSpec, Workload
from testbed.train.data import Corpus
from testbed.train.shards import Shards
from testbed.train.stage import Stage


def make_optimizer(spec: OptimizerSpec, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer a workload asks for."""
    if spec.kind == "sgd":
        return torch.optim.SGD(parameters, lr=spec.learning_rate, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=spec.learning_rate)


@dataclass(frozen=True)
class Reference:
    """Losses and norms per iteration, and every parameter's gradient in the last one, named by global layer index."""

    losses: tuple[float, ...]
    gradient_norms: tuple[tuple[float, ...], ...]
    """Per iteration, of every layer."""
    gradients: dict[str, torch.Tensor]


def train_reference(workload: Workload, corpus: Corpus, iterations: int) -> Reference:
    """Train the whole model on one process, microbatch after microbatch, those of all replicas."""
    microbatches = workload.microbatches * workload.parallelism.data
    stage = Stage(workload.model, 0, 1, microbatches, workload.seed)
    optimizer = make_optimizer(workload.optimizer, list(stage.layers.parameters()))
    losses: list[float] = []
    norms: list[tuple[float, ...]] = []
    gradients: dict[str, torch.Tensor] = {}
    for iteration in range(iterations):
        optimizer.zero_grad()
        for microbatch in range(microbatches):
            inputs, targets = stage.model.batch(corpus, workload.seed, iteration, microbatch, workload.microbatch_size)
            stage.forward(microbatch, WHOLE, inputs, targets)
            stage.backward(microbatch, WHOLE, None)
        loss = stage.end_iteration()
        assert loss is not None
        losses.append(loss)
        norms.append(tuple(map(math.sqrt, gradient_squares(stage, 0).values())))
        gradients = named_gradients(stage, 0)
        optimizer.step()
    return Reference(tuple(losses), tuple(norms), gradients)


def gradient_squares(stage: Stage, first_layer: int, shards: Shards | None = None) -> dict[int, float]:
    """The sum of squares of every layer's gradients, by global layer index, in double precision.

    Only of the shards of this replica, where there are `shards`, and of what tensor ranks share. The root of their sum
    over all replicas and tensor ranks is what losses do not show: Adam's steps hardly depend on the size of gradients.
    """
    squares = {first_layer + index: 0.0 for index in range(len(stage.layers))}
    for layer, _, parameter, gradient in _kept(stage, shards):
        if stage.share is None or stage.share.counted(parameter):
            squares[first_layer + layer] += float(gradient.double().square().sum())
    return squares


def _kept(stage: Stage, shards: Shards | None) -> Iterator[tuple[int, str, nn.Parameter, torch.Tensor]]:
    """(layer, parameter's name, parameter, what of its gradient is kept here, the rest as zeros)."""
    begin = 0
    for index, layer in enumerate(stage.layers):
        for name, parameter in layer.named_parameters():
            if parameter.grad is None:
                continue
            gradient = parameter.grad.detach()
            if shards is not None:
                kept = torch.zeros_like(gradient)
                for ends in shards.own_ends:
                    low, high = (min(max(end - begin, 0), gradient.numel()) for end in ends)
                    kept.view(-1)[low:high] = gradient.reshape(-1)[low:high]
                gradient = kept
            begin += gradient.numel()
            yield index, name, parameter, gradient


def named_gradients(stage: Stage, first_layer: int, shards: Shards | None = None) -> dict[str, torch.Tensor]:
    """A copy of every gradient of a stage as "layer.parameter"; `first_layer` is its first layer's global index.

    Of whole parameters; zero where another replica or tensor rank keeps it.
    """
    share = stage.share
    return {
        f"{first_layer + layer}.{name}": gradient.clone() if share is None else share.whole(parameter, gradient)
        for layer, name, parameter, gradient in _kept(stage, shards)
    }
