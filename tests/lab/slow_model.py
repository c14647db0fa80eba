"""A model on a machine that can be slowed down: each layer's forward waits for so many seconds as a variable says."""

from __future__ import annotations

import os
import time
from typing import Any

from testbed.spec.model import ModelSpec

WIDTH, SEQUENCE = 16, 8
SLOWNESS = "TESTBED_SLOWNESS"
"""Of the environment: files of a test are not seen where a model trains."""


class Slowed(ModelSpec):
    """Layer 0 embeds, the last one projects, what lies between adds a linear map."""

    def boundary_shape(self, microbatch_size: int) -> tuple[int, ...]:
        return (microbatch_size, SEQUENCE, WIDTH)

    def parameter_count(self) -> int:
        return (self.layers - 2) * WIDTH * WIDTH + 2 * 256 * WIDTH

    def layer(self, index: int) -> Any:
        from torch import nn

        class Waiting(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Any) -> Any:
                time.sleep(float(os.environ.get(SLOWNESS, "0")))
                return self.inner(x)

        if index == 0:
            return Waiting(nn.Embedding(256, WIDTH))
        if index == self.layers - 1:
            return Waiting(nn.Linear(WIDTH, 256, bias=False))
        return Waiting(nn.Linear(WIDTH, WIDTH, bias=False))

    def batch(self, corpus: Any, seed: int, iteration: int, microbatch: int, size: int) -> Any:
        return corpus.batch(seed, iteration, microbatch, size, SEQUENCE)

    def loss(self, output: Any, targets: Any) -> Any:
        from torch.nn.functional import cross_entropy

        return cross_entropy(output.flatten(0, 1), targets.flatten())
