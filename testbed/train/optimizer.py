"""The optimizer that a rank steps: torch's own functions of it, and the states between their calls.

Not torch's classes: the first object of one imports torch's compiler, 800 modules that nothing here uses, and that cost
more than all the rest of torch; and each step of one goes through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from testbed.spec.workload import OptimizerSpec


class Optimizer(ABC):
    """Steps parameters by their gradients; those without one stay as they are, and have no state."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.state: dict[nn.Parameter, dict[str, torch.Tensor]] = {}
        """Of every parameter that was stepped, what is kept of it, by torch's names."""

    def step(self) -> None:
        """Step them all once."""
        with torch.no_grad():
            self._step([parameter for parameter in self.parameters if parameter.grad is not None])

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[int, dict[str, torch.Tensor]]:
        """The states, by the places of their parameters."""
        places = {parameter: place for place, parameter in enumerate(self.parameters)}
        return {places[parameter]: state for parameter, state in self.state.items()}

    def load_state_dict(self, saved: dict[int, dict[str, torch.Tensor]]) -> None:
        """Go on from what `state_dict` gave, of an optimizer of like parameters."""
        self.state = {self.parameters[place]: state for place, state in saved.items()}

    @abstractmethod
    def _step(self, parameters: list[nn.Parameter]) -> None: ...

    def _gradients(self, parameters: Sequence[nn.Parameter]) -> list[Any]:
        return [parameter.grad for parameter in parameters]


class AdamW(Optimizer):
    """AdamW (Loshchilov and Hutter 2019) with the constants that torch has by default."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
        super().__init__(parameters, learning_rate, weight_decay=1e-2)

    def _step(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            list[torch.Tensor](parameters),
            self._gradients(parameters),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


class SGD(Optimizer):
    """Gradient descent with a momentum of 0.9, as torch defines it."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
        super().__init__(parameters, learning_rate, weight_decay=0.0)

    def _step(self, parameters: list[nn.Parameter]) -> None:
        momenta = [self.state.get(parameter, {}).get("momentum_buffer") for parameter in parameters]
        sgd(
            list[torch.Tensor](parameters),
            self._gradients(parameters),
            momenta,
            weight_decay=self.weight_decay,
            momentum=0.9,
            lr=self.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for parameter, momentum in zip(parameters, momenta, strict=True):
            assert momentum is not None  # the function has put it there
            self.state[parameter] = {"momentum_buffer": momentum}


def make_optimizer(spec: OptimizerSpec, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimizer a workload asks for."""
    kinds = {"adamw": AdamW, "sgd": SGD}
    return kinds[spec.kind](parameters, spec.learning_rate)
