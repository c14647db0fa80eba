"""Which rank holds which stage: one stage per rank, or two in a loop or a V (CrossPipe, Fig. 5)."""

from __future__ import annotations

from enum import StrEnum


class Placement(StrEnum):
    """How a pipeline passes through the ranks."""

    UD = "ud"
    """unidirectional: stage r on rank r"""
    LOOP = "loop"
    """interleaved: stages r and P + r on rank r; the second pass starts again at rank 0"""
    WAVE = "wave"
    """V shape: stages r and 2P - 1 - r on rank r; the second pass comes back"""


def stage_to_rank(placement: Placement, n_ranks: int) -> tuple[int, ...]:
    """The rank of every stage."""
    down = tuple(range(n_ranks))
    match placement:
        case Placement.UD:
            return down
        case Placement.LOOP:
            return down + down
        case Placement.WAVE:
            return down + down[::-1]
