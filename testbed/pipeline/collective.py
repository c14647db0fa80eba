"""Data-parallel communication of a stage with its replicas: what it costs, and when parameters are there.

ZeRO-1 (CrossPipe, section 3.5): an all-gather of a stage's parameters before its first F, a reduce-scatter of its
gradients after its last W. Both are implicit in a schedule, like the messages between stages: every all-gather is
handed to the links at the iteration's start, in the order of the stages (the order in which each rank first uses
them), every reduce-scatter when its stage's last W or B ends. Neither occupies a rank; both occupy links, first come,
first served, together with the pipeline's messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from testbed.pipeline.link import LinkCost


class Collective(NamedTuple):
    """A ring all-gather or reduce-scatter over the replicas of one stage."""

    legs: tuple[tuple[int, ...], ...]
    """Per edge of the ring that costs anything, the links it takes, in order. All edges carry data at the same time."""
    wire_bytes: float
    """What each edge carries in all: (N - 1)/N of the stage's data for N replicas."""
    rounds: int
    """Steps of the ring one after another, N - 1; each pays the edge's delay."""

    def extra_delay_s(self, leg: int, links: Sequence[LinkCost]) -> float:
        """Seconds of delay an edge adds to a single transfer's: one for each round after the first."""
        return (self.rounds - 1) * sum(links[index].delay_s for index in self.legs[leg])


NO_COLLECTIVE = Collective((), 0.0, 1)


class Gathered(NamedTuple):
    """What the all-gathers at the iteration's start come to."""

    ready_s: tuple[float, ...]
    """Per stage, when its parameters are on its rank."""
    link_free_s: tuple[float, ...]
    """Per link, until when they occupy it."""


def gathered(collectives: Sequence[Collective], links: Sequence[LinkCost]) -> Gathered:
    """All-gathers of the stages, queued at time 0 in order; several hops are cut through."""
    free = [0.0] * len(links)
    ready = []
    for collective in collectives:
        latest = 0.0
        for number, leg in enumerate(collective.legs):
            first_bit = last_bit = 0.0
            for index in leg:
                start = max(first_bit, free[index])
                end = max(start + collective.wire_bytes * links[index].seconds_per_byte, last_bit)
                free[index] = end
                first_bit, last_bit = start + links[index].delay_s, end + links[index].delay_s
            latest = max(latest, last_bit + collective.extra_delay_s(number, links))
        ready.append(latest)
    return Gathered(tuple(ready), tuple(free))
