"""A model that holds much and computes little: each layer's forward keeps some megabytes until its backward."""

from __future__ import annotations

from typing import Any

from testbed.spec.model import ModelSpec

WIDTH, SEQUENCE = 16, 8
HELD_BYTES = 16 * 2**20
"""By a microbatch in a layer."""


class Hungry(ModelSpec):
    """Layer 0 embeds, the last one projects, what lies between adds a linear map."""

    def boundary_shape(self, microbatch_size: int) -> tuple[int, ...]:
        return (microbatch_size, SEQUENCE, WIDTH)

    def parameter_count(self) -> int:
        return (self.layers - 2) * WIDTH * WIDTH + 2 * 256 * WIDTH

    def layer(self, index: int) -> Any:
        import torch
        from torch import nn

        class Holding(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Any) -> Any:
                found = self.inner(x)
                held = torch.zeros(HELD_BYTES // 4)
                held.fill_(0.0)  # every page of it is there
                return found + (found.sum() * held)[:1]  # whose gradient wants what is held

        if index == 0:
            return Holding(nn.Embedding(256, WIDTH))
        if index == self.layers - 1:
            return Holding(nn.Linear(WIDTH, 256, bias=False))
        return Holding(nn.Linear(WIDTH, WIDTH, bias=False))

    def batch(self, corpus: Any, seed: int, iteration: int, microbatch: int, size: int) -> Any:
        return corpus.batch(seed, iteration, microbatch, size, SEQUENCE)

    def loss(self, output: Any, targets: Any) -> Any:
        from torch.nn.functional import cross_entropy

        return cross_entropy(output.flatten(0, 1), targets.flatten())
