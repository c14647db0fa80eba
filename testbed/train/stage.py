"""One pipeline stage's real computation: forwards, input gradients and weight gradients, whole or in parts.

Layers are cut apart at their inputs, so any run of layers can be executed on its own: that is what makes CrossPipe's
sub-blocks (subsets of a stage's layers) real computation rather than a fraction of a timer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from testbed.pipeline.ir import Part
from testbed.spec.model import ModelSpec
from testbed.train.model_protocol import build_layers, trainable
from testbed.train.split import GradientStore, WeightProduct
from testbed.train.tensor import TensorShare


@dataclass
class _InFlight:
    """What a stage keeps of a microbatch between its forward and its last gradient."""

    value: torch.Tensor
    """Output of the layers run so far."""
    targets: torch.Tensor | None = None
    inputs: list[torch.Tensor] = field(default_factory=list)
    """Per layer run, its detached input."""
    outputs: list[torch.Tensor] = field(default_factory=list)
    """Per layer run, its output, the root of that layer's graph."""
    gradient: torch.Tensor | None = None
    """Gradient of the next layer (from the top) to run backward through."""
    products: list[list[WeightProduct]] = field(default_factory=list)
    """Per layer from the top, the weight products that its input gradient left."""


def _backward(output: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Backward through what made `output`; without its `gradient`: it is a loss.

    torch's engine is told so itself. Before that, torch's own `backward` takes longer than the backward of a small
    layer, and where it is handed a gradient it imports a package for symbolic arithmetic: 400 modules.
    """
    if gradient is None:
        gradient = torch.ones_like(output)
    # keep no graph, create none, for all leaves, of which some may be out of reach, and add to their gradients
    how = (False, False, (), True, True)
    torch.autograd.Variable._execution_engine.run_backward((output,), (gradient,), *how)


class Stage:
    """The layers of one stage and the microbatches it has in flight."""

    def __init__(
        self,
        spec: ModelSpec,
        stage: int,
        n_stages: int,
        n_microbatches: int,
        seed: int,
        *,
        recompute: bool = False,
        share: TensorShare | None = None,
    ) -> None:
        self.recompute, self.share = recompute, share
        self.store = GradientStore()
        self.model = trainable(spec)
        self.layers: nn.ModuleList = build_layers(spec, spec.stage_layers(stage, n_stages), seed, self.store, share)
        self.is_last = stage == n_stages - 1
        self.n_microbatches = n_microbatches
        """Of all replicas: a microbatch's loss counts for so much less."""
        self.in_flight: dict[int, _InFlight] = {}
        self.losses: dict[int, float] = {}
        """Per microbatch of this iteration, its loss already divided by M (last stage only)."""

    def _layer_indexes(self, part: Part) -> range:
        count = len(self.layers)
        return range(part.begin * count // part.of, part.end * count // part.of)

    def forward(
        self, microbatch: int, part: Part, value: torch.Tensor | None, targets: torch.Tensor | None
    ) -> torch.Tensor:
        """Run the layers of `part`; `value` enters with the first part, `targets` with the last stage's last.

        Returns the output so far; after the last stage's last part that is the loss divided by M.
        """
        if part.is_first:
            assert value is not None
            self.in_flight[microbatch] = _InFlight(value)
        state = self.in_flight[microbatch]
        for index in self._layer_indexes(part):
            leaf = state.value.detach()
            if leaf.is_floating_point():
                leaf.requires_grad_()
            if targets is not None:
                state.targets = targets
            if self.recompute:
                with torch.no_grad():
                    output = self._layer(index, leaf, state)
            else:
                output = self._layer(index, leaf, state)
            if self._is_loss(index):
                self.losses[microbatch] = float(output.detach())
            state.inputs.append(leaf)
            state.outputs.append(output)
            state.value = output
        return state.value.detach()

    def _is_loss(self, index: int) -> bool:
        return self.is_last and index == len(self.layers) - 1

    def _layer(self, index: int, value: torch.Tensor, state: _InFlight) -> torch.Tensor:
        """A layer's output; the very last layer's is the loss divided by M."""
        output: torch.Tensor = self.layers[index](value)
        if not self._is_loss(index):
            return output
        assert state.targets is not None
        return self.model.loss(output, state.targets) / self.n_microbatches

    def backward(self, microbatch: int, part: Part, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Full backward through the layers of `part`, counted from the top; frees the microbatch with the last part.

        `gradient` of the stage's output enters with the first part (None on the last stage).
        Returns the gradient of the stage's input after the last part (None on the first stage).
        """
        result = self._through(microbatch, part, gradient, collect=False)
        if part.is_last:
            del self.in_flight[microbatch]
        return result

    def input_gradient(self, microbatch: int, part: Part, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Like `backward`, but weight products are kept for `weight_gradient`."""
        return self._through(microbatch, part, gradient, collect=True)

    def _through(
        self, microbatch: int, part: Part, gradient: torch.Tensor | None, *, collect: bool
    ) -> torch.Tensor | None:
        state = self.in_flight[microbatch]
        if part.is_first:
            state.gradient = gradient
        for _ in self._layer_indexes(part):
            output, leaf = state.outputs.pop(), state.inputs.pop()
            if self.recompute:
                output = self._layer(len(state.inputs), leaf, state)
            if collect:
                self.store.collecting = []
            _backward(output, state.gradient)
            if collect:
                assert self.store.collecting is not None
                state.products.append(self.store.collecting)
                self.store.collecting = None
            state.gradient = leaf.grad
        return state.gradient if part.is_last else None

    def weight_gradient(self, microbatch: int, part: Part) -> None:
        """Compute the weight gradients kept by the layers of `part`; frees the microbatch with the last part."""
        state = self.in_flight[microbatch]
        for index in self._layer_indexes(part):
            for product in state.products[index]:
                product.accumulate()
            state.products[index] = []
        if part.is_last:
            del self.in_flight[microbatch]

    def end_iteration(self) -> float | None:
        """The iteration's loss (last stage), and room for the next one. Raises RuntimeError if anything is left."""
        if self.in_flight:
            raise RuntimeError(f"microbatches still in flight at the end of the iteration: {sorted(self.in_flight)}")
        # added in microbatch order, so that the sum does not depend on the schedule
        loss = sum(self.losses[m] for m in sorted(self.losses)) if self.losses else None
        self.losses.clear()
        return loss
