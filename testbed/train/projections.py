"""Random projections of a tensor: enough to tell it from another one, however large it is, and they add up.

A projection of a difference on a vector of independent normal numbers has the difference's Euclidean norm as its
standard deviation (Johnson and Lindenstrauss 1984), so the root mean square over a few vectors tells how far apart two
tensors are: one lost element, two shards in each other's place and a wrong factor all show.
"""

from __future__ import annotations

import zlib

import torch

from testbed.train.assignment import PROJECTIONS

_BLOCK = 1 << 17
"""Elements whose random numbers are in memory at a time."""


def projections(parameter: str, values: torch.Tensor) -> tuple[float, ...]:
    """Of a whole tensor, zero where others keep it; the vectors depend on the parameter's name and shape alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(parameter.encode()))
    found = torch.zeros(PROJECTIONS, dtype=torch.float64)
    for block in torch.split(values.detach().reshape(-1).double(), _BLOCK):
        found += torch.randn(PROJECTIONS, len(block), generator=generator, dtype=torch.float64) @ block
    return tuple(found.tolist())


def squared(values: torch.Tensor) -> float:
    """The sum of squares, in double precision."""
    return float(values.detach().double().square().sum())
