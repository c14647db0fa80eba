"""Random projections of a tensor: enough to tell it from another one, however large it is, and they add up.

A projection of a difference on a vector of independent normal numbers has the difference's Euclidean norm as its
standard deviation (Johnson and Lindenstrauss 1984), so the root mean square over a few vectors tells how far apart two
tensors are: one lost element, two shards in each other's place and a wrong factor all show.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache

import torch

from testbed.train.assignment import PROJECTIONS

_BLOCK = 1 << 17
"""Elements whose random numbers are in memory at a time."""

_KEPT = 64
_KEPT_ELEMENTS = 1 << 15
"""Vectors of so many parameters of at most this size are kept: 128 MB at most, drawn once for all schedules."""


def projections(parameter: str, values: torch.Tensor) -> tuple[float, ...]:
    """Of a whole tensor, zero where others keep it; the vectors depend on the parameter's name and shape alone."""
    flat = values.detach().reshape(-1).double()
    if len(flat) <= _KEPT_ELEMENTS:
        return tuple((_kept_vectors(parameter, len(flat)) @ flat).tolist())
    found = torch.zeros(PROJECTIONS, dtype=torch.float64)
    for vectors, block in zip(_vectors(parameter, len(flat)), torch.split(flat, _BLOCK), strict=True):
        found += vectors @ block
    return tuple(found.tolist())


def _vectors(parameter: str, elements: int) -> Iterator[torch.Tensor]:
    """The vectors of a parameter, a block of elements at a time: (PROJECTIONS, elements of the block)."""
    generator = torch.Generator().manual_seed(zlib.crc32(parameter.encode()))
    for begin in range(0, elements, _BLOCK):
        shape = PROJECTIONS, min(_BLOCK, elements - begin)
        yield torch.randn(shape, generator=generator, dtype=torch.float64)


@lru_cache(maxsize=_KEPT)
def _kept_vectors(parameter: str, elements: int) -> torch.Tensor:
    (vectors,) = _vectors(parameter, elements)
    return vectors


def squared(values: torch.Tensor) -> float:
    """The sum of squares, in double precision."""
    return float(values.detach().double().square().sum())
