"""The parameters of a stage and their gradients as two vectors, cut into the cells that its replicas exchange."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from testbed.pipeline.collectives import Cells, Exchange


class Shards:
    """The vectors of one stage on one of its replicas, and what of them it keeps up to date itself."""

    def __init__(self, parameters: Sequence[nn.Parameter], exchange: Exchange, member: int) -> None:
        """The parameters, and their gradients, become views of the vectors."""
        self.size = exchange.cell_size(sum(p.numel() for p in parameters))
        """Elements of a cell."""
        self.values = torch.zeros(exchange.n_cells * self.size, dtype=parameters[0].dtype)
        self.gradients = torch.zeros_like(self.values)
        begin = 0
        for parameter in parameters:
            mine = slice(begin, begin + parameter.numel())
            self.values[mine] = parameter.detach().reshape(-1)
            parameter.data = self.values[mine].view_as(parameter)
            parameter.grad = self.gradients[mine].view_as(parameter)
            begin += parameter.numel()
        own = exchange.shards[member]
        self.own_ends = [(self.size * first, self.size * behind) for first, behind in own]
        """Of every shard of its own its first element, of those of all parameters one after the other, and the one
        behind its last: no two replicas have the same."""
        self.sharded = bool(exchange.gather)
        """Whether each replica steps its own shards only (ZeRO-1), and the others bring what they step."""
        stepped = own if self.sharded else ((0, exchange.n_cells),)
        self.stepped = [nn.Parameter(self.of(self.values, cells)) for cells in stepped]
        """What the optimizer steps here ..."""
        self.begins = [self.size * first for first, _ in stepped]
        """... and where in the vectors each of that begins."""
        for parameter, cells in zip(self.stepped, stepped, strict=True):
            parameter.grad = self.of(self.gradients, cells)

    def of(self, vector: torch.Tensor, cells: Cells) -> torch.Tensor:
        """Some cells of one of the vectors, as a view."""
        return vector[cells[0] * self.size : cells[1] * self.size]
