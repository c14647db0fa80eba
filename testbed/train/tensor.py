"""Tensor parallelism: layers whose weights are cut into shares, one for each tensor rank of a stage.

Megatron's pair of cuts (Shoeybi et al. 2019, section 3): the first linear layer is cut along its outputs, the second
along its inputs, and nothing has to be exchanged between them. What the second gives is summed over the tensor ranks in
the forward, the gradient of what entered the first in the backward: within the input gradient, so that a weight
gradient that is computed by itself needs nobody. All else is the same on every tensor rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from testbed.train.tensor_peers import Peers


class Slice(NamedTuple):
    """Which part of a whole parameter a tensor rank has."""

    dimension: int
    places: torch.Tensor
    """int64, along that dimension."""
    shape: torch.Size
    """Of the whole parameter."""


class TensorShare:
    """What one tensor rank has of the split layers of its stages."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.slices: dict[nn.Parameter, Slice] = {}
        """Of every parameter that is split; the others are whole on every tensor rank."""

    def split_outputs(self, linear: nn.Linear, groups: int = 1) -> None:
        """Keep this rank's share of a layer's outputs, of each of `groups` equal groups of them (and of its bias)."""
        self._keep(linear, "weight", 0, groups)
        if linear.bias is not None:
            self._keep(linear, "bias", 0, groups)
        linear.out_features = len(linear.weight)

    def split_inputs(self, linear: nn.Linear) -> None:
        """Keep this rank's share of a layer's inputs: it gives a summand. Raises ValueError for one with a bias."""
        if linear.bias is not None:
            raise ValueError("a layer that is split along its inputs has no bias: every tensor rank would add it")
        self._keep(linear, "weight", 1, 1)
        linear.in_features = linear.weight.shape[1]

    def _keep(self, linear: nn.Linear, name: str, dimension: int, groups: int) -> None:
        whole = getattr(linear, name).detach()
        parts = torch.arange(whole.shape[dimension]).view(groups, self.peers.degree, -1)
        places = parts[:, self.peers.tensor_rank].reshape(-1)
        mine = nn.Parameter(whole.index_select(dimension, places))
        setattr(linear, name, mine)
        self.slices[mine] = Slice(dimension, places, whole.shape)

    def spread(self, value: torch.Tensor) -> torch.Tensor:
        """The input of split layers: itself; its gradient is summed over the tensor ranks."""
        result: torch.Tensor = _Spread.apply(value, self.peers)  # type: ignore[no-untyped-call]
        return result

    def joined(self, value: torch.Tensor) -> torch.Tensor:
        """The output of split layers: summed over the tensor ranks; its gradient is the same on each of them."""
        result: torch.Tensor = _Joined.apply(value, self.peers)  # type: ignore[no-untyped-call]
        return result

    def counted(self, parameter: nn.Parameter) -> bool:
        """Whether a parameter is to be counted here, if it is to be counted once over all tensor ranks."""
        return parameter in self.slices or self.peers.tensor_rank == 0

    def whole(self, parameter: nn.Parameter, values: torch.Tensor) -> torch.Tensor:
        """Values for what is here of a parameter as those of the whole one: zero where other tensor ranks count it."""
        known = self.slices.get(parameter)
        if known is None:
            return values if self.peers.tensor_rank == 0 else torch.zeros_like(values)
        return values.new_zeros(known.shape).index_copy_(known.dimension, known.places, values)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, peers: Peers) -> torch.Tensor:
        ctx.peers = peers
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.peers.total(gradients[0]), None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, peers: Peers) -> torch.Tensor:
        return peers.total(value)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None
