"""The collectives by which replicas may exchange parameters and gradients: the one place that knows them by name.

All others ask a collective's `Algorithm` what they need to know of it. Another one is a function here, or in a module
of its own, and its entry in `ALGORITHMS`; workloads can name it then, and plans, predictions and the engine have it.
"""

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
    """Into which a collective that is `chunked` is cut."""


class Algorithm(NamedTuple):
    """A collective, and what others must know of it."""

    messages: Callable[[Members], Exchange]
    """What its members send each other."""
    words: str
    """How it goes, for people: they read "all-reduced ...", "gathered and reduced ..."."""
    chunked: bool = False
    """Whether it cuts the vectors into chunks, as many as a workload asks for."""
    cyclic: bool = False
    """Whether its members pass on to the next one in their order, so that another order may be faster."""
    by_gloo: bool = False
    """Whether gloo carries it out itself, an all-reduce only: the messages stand for it in predictions."""


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


ALGORITHMS: Mapping[str, Algorithm] = {
    "ring": Algorithm(ring, "around a ring", cyclic=True),
    "hierarchical": Algorithm(in_two_levels, "inside datacenters and between them", chunked=True),
    "torch": Algorithm(torch_ring, "by gloo itself", cyclic=True, by_gloo=True),
}
"""By the name in a workload. All that are not `by_gloo` are carried out message by message as they stand here."""


@cache
def exchange(algorithm: str, members: Members) -> Exchange:
    """What members do under an algorithm of that name. Raises KeyError for a name that is not known."""
    return ALGORITHMS[algorithm].messages(members)
