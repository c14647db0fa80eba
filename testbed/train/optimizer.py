"""The optimizer that a rank steps."""

from __future__ import annotations

import torch
from torch import nn

from testbed.spec.workload import OptimizerSpec


def make_optimizer(spec: OptimizerSpec, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer a workload asks for, with torch's own defaults but for SGD's momentum of 0.9."""
    if spec.kind == "sgd":
        return torch.optim.SGD(parameters, lr=spec.learning_rate, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=spec.learning_rate)
