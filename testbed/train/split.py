"""Any model's linear layers, with weight gradients that can be kept back, so that one backward splits into I and W.

Zero Bubble's WeightGradStore as an autograd function: the input gradient is computed at once, the weight-gradient
matrix products (nearly all of W's work in a transformer) are stored and run when the schedule says so. All other
gradients (biases, norms, embeddings, convolutions ...) stay with I: a layer without torch.nn.Linear has an empty W,
and its gradients are right all the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn


class WeightProduct(NamedTuple):
    """One weight gradient still to be computed: output_gradient^T @ input, added to weight.grad."""

    weight: nn.Parameter
    input: torch.Tensor
    output_gradient: torch.Tensor

    def accumulate(self) -> None:
        """Compute it and add it to the parameter's gradient."""
        product = _weight_gradient(self.input, self.output_gradient)
        with torch.no_grad():
            self.weight.grad = product if self.weight.grad is None else self.weight.grad.add_(product)


class GradientStore:
    """Where the linear layers of a stage leave their weight products while `collecting` is a list."""

    def __init__(self) -> None:
        self.collecting: list[WeightProduct] | None = None


def _weight_gradient(inputs: torch.Tensor, output_gradient: torch.Tensor) -> torch.Tensor:
    return output_gradient.reshape(-1, output_gradient.shape[-1]).t() @ inputs.reshape(-1, inputs.shape[-1])


class _SplitProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: nn.Parameter, store: GradientStore) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.store = store
        return inputs @ weight.t()

    @staticmethod
    def backward(ctx: Any, *output_gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        (output_gradient,) = output_gradients
        inputs, weight = ctx.saved_tensors
        input_gradient = output_gradient @ weight if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return input_gradient, None, None
        if ctx.store.collecting is None:
            return input_gradient, _weight_gradient(inputs, output_gradient), None
        ctx.store.collecting.append(WeightProduct(weight, inputs, output_gradient))
        return input_gradient, None, None


def keep_back(layer: nn.Module, store: GradientStore) -> nn.Module:
    """The same layer, in which every torch.nn.Linear leaves its weight product in `store` while that collects.

    Classes derived from nn.Linear may compute something else and are left alone.
    """
    for module in layer.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_linear, module, store)  # type: ignore[method-assign]
    return layer


def _linear(module: nn.Linear, store: GradientStore, inputs: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _SplitProduct.apply(inputs, module.weight, store)  # type: ignore[no-untyped-call]
    return result if module.bias is None else result + module.bias
