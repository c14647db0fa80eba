"""The same training in one process without a pipeline: what every schedule's losses and gradients must equal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from testbed.pipeline.ir import WHOLE
from testbed.spec.workload import OptimizerSpec, Workload
from testbed.train.data import Corpus
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
    """Train the whole model on one process, microbatch after microbatch."""
    stage = Stage(workload.model, 0, 1, workload.microbatches, workload.seed)
    optimizer = make_optimizer(workload.optimizer, list(stage.layers.parameters()))
    losses: list[float] = []
    norms: list[tuple[float, ...]] = []
    gradients: dict[str, torch.Tensor] = {}
    for iteration in range(iterations):
        optimizer.zero_grad()
        for microbatch in range(workload.microbatches):
            inputs, targets = stage.model.batch(corpus, workload.seed, iteration, microbatch, workload.microbatch_size)
            stage.forward(microbatch, WHOLE, inputs, targets)
            stage.backward(microbatch, WHOLE, None)
        loss = stage.end_iteration()
        assert loss is not None
        losses.append(loss)
        norms.append(tuple(gradient_norms(stage, 0).values()))
        gradients = named_gradients(stage, 0)
        optimizer.step()
    return Reference(tuple(losses), tuple(norms), gradients)


def gradient_norms(stage: Stage, first_layer: int) -> dict[int, float]:
    """The Euclidean norm of every layer's gradients, by global layer index, summed in double precision.

    What losses do not show: Adam's steps hardly depend on the size of gradients.
    """
    squares = {
        first_layer + index: [p.grad.double().square().sum() for p in layer.parameters() if p.grad is not None]
        for index, layer in enumerate(stage.layers)
    }
    return {index: math.sqrt(sum(map(float, parts))) for index, parts in squares.items()}


def named_gradients(stage: Stage, first_layer: int) -> dict[str, torch.Tensor]:
    """A copy of every gradient of a stage as "layer.parameter"; `first_layer` is its first layer's global index."""
    return {
        f"{first_layer + index}.{name}": parameter.grad.detach().clone()
        for index, layer in enumerate(stage.layers)
        for name, parameter in layer.named_parameters()
        if parameter.grad is not None
    }
