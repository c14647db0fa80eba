"""The ways in which replicas may exchange parameters and gradients, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from testbed.pipeline.collectives import CollectiveMessages, Exchange, ring_gather, ring_reduce
from testbed.pipeline.hierarchical import hierarchical


class Members(NamedTuple):
    """Who takes part, and what in."""

    sites: tuple[str, ...]
    """The datacenter of every member."""
    sharded: bool
    """Whether every member keeps a shard of the optimizer's states (ZeRO-1), or all of them."""
    chunks: int = 1
    """Into which a collective in two levels is cut."""


def ring(members: Members) -> Exchange:
    """Around all members, in their order: in each step a share of 1/N over every edge of the ring."""
    return _ring(members, range(len(members.sites)))


def torch_ring(members: Members) -> Exchange:
    """What stands for gloo's own all-reduce in predictions: a ring from each member to the one before it.

    Gloo cuts each share into segments of at most 1 MB, and has two of them on their way at once, each sent only when it
    has been asked for (allreduce.cc); that is left out, so that it takes longer.
    """
    return _ring(members, range(len(members.sites))[::-1])


def _ring(members: Members, order: range) -> Exchange:
    gather, reduction = CollectiveMessages(), CollectiveMessages()
    parts = [(member, member + 1) for member in order]
    summed = ring_reduce(reduction, order, parts)
    if members.sharded:
        ring_gather(gather, order, parts)
    else:
        ring_gather(reduction, order, parts, summed, own=True)
    kind = "reduce-scatter" if members.sharded else "all-reduce"
    shards = tuple(((member, member + 1),) for member in range(len(order)))
    return Exchange(len(order), gather.done(), reduction.done(), kind, shards)


def in_two_levels(members: Members) -> Exchange:
    """Inside datacenters and between them; see hierarchical.py."""
    return hierarchical(members.sites, sharded=members.sharded, chunks=members.chunks)


ALGORITHMS: Mapping[str, Callable[[Members], Exchange]] = {
    "ring": ring,
    "hierarchical": in_two_levels,
    "torch": torch_ring,
}
"""By the name in a workload. All but `torch` are carried out message by message as they stand here."""


@cache
def exchange(algorithm: str, members: Members) -> Exchange:
    """What members do under an algorithm of that name. Raises KeyError for a name that is not known."""
    return ALGORITHMS[algorithm](members)
