"""What the engine needs of a model: layers, batches, a loss."""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

import torch
from torch import nn

from testbed.errors import BadInput
from testbed.spec.model import ModelSpec, missing_methods
from testbed.train.data import Corpus
from testbed.train.split import GradientStore, keep_back
from testbed.train.tensor import TensorShare


@runtime_checkable
class Model(Protocol):
    """The part of a model's class that trains, beside the description that `ModelSpec` is.

    Layers are numbered from 0 and called in turn: the first with a batch's inputs, each further one with the output of
    the one before, a tensor of `boundary_shape`. They can be cut apart anywhere. A layer must compute the same each
    time it is called with the same input, for `recompute`: no dropout.
    """

    def layer(self, index: int) -> nn.Module:
        """A new layer. torch's own generator has been seeded for it, so weights do not depend on the cut."""

    def batch(
        self, corpus: Corpus, seed: int, iteration: int, microbatch: int, size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a microbatch of `size` samples; the same arguments must give the same tensors."""

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of a microbatch (a scalar), from the last layer's output."""


@runtime_checkable
class SplitModel(Protocol):
    """What a model for tensor ranks has beside that, and beside `check_tensor_degree` of its description."""

    def split(self, layer: nn.Module, share: TensorShare) -> nn.Module:
        """A layer cut down to a tensor rank's share, which names the parameters that are split.

        Together the tensor ranks compute what the whole layer would; each of them has all of its input and output.
        """


def trainable(spec: ModelSpec) -> Model:
    """The model as the engine sees it. Raises BadInput when a method is missing."""
    if missing := missing_methods(spec):
        raise BadInput.of("model", "kind", spec.kind, f"a class that also has {', '.join(missing)}")
    return cast(Model, spec)


def draw_layer(model: Model, spec: ModelSpec, index: int, seed: int) -> nn.Module:
    """A layer with the weights that the seed gives it, wherever the model is cut."""
    dtype = torch.float32 if spec.dtype == "float32" else torch.float64
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed has every kind of device note, with the whole stack, that it is to be seeded one day
        torch.default_generator.manual_seed(seed * 1_000_003 + index)
        return model.layer(index).to(dtype)


def build_layers(
    spec: ModelSpec, indexes: range, seed: int, store: GradientStore, share: TensorShare | None = None
) -> nn.ModuleList:
    """Some of a model's layers; each draws its weights from its own seed, so they do not depend on the cut.

    With a `share` they are drawn whole, and a tensor rank's share of them is kept. While `store` collects, the weight
    gradients of every torch.nn.Linear in them are kept back (split.py). Raises BadInput when a method is missing.
    """
    model = trainable(spec)
    if share is not None and not isinstance(spec, SplitModel):
        raise BadInput.of("model", "kind", spec.kind, "a class that also has split: there are tensor ranks")
    layers = nn.ModuleList()
    for index in indexes:
        layer = draw_layer(model, spec, index, seed)
        if share is not None:
            layer = cast(SplitModel, model).split(layer, share)
        layers.append(keep_back(layer, store))
    return layers
