"""The collectives by which replicas may exchange parameters and gradients: the one place that knows them by name.

All others ask a collective's `Algorithm` what they need to know of it. Another one is a function here, or in a module
of its own, and its entry in `ALGORITHMS`; workloads can name it then, and plans, predictions and the engine have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from testbed.pipeline.collectives import After, CollectiveMessages, Exchange, ring_gather, ring_reduce
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


def direct(members: Members) -> Exchange:
    """Each member is sent its part by all others, adds them up, and sends all others the sum.

    As many bytes per member as around a ring, in two steps instead of 2(N - 1); but more of them may cross between
    datacenters. So it is faster where delays count more than bytes, and datacenters are more than two.
    """
    gather, reduction = CollectiveMessages(), CollectiveMessages()
    count = len(members.sites)
    parts = [(member, member + 1) for member in range(count)]
    pairs = [(source, (source + hop) % count) for hop in range(1, count) for source in range(count)]
    summed: After = {member: [] for member in range(count)}
    for source, target in pairs:
        summed[target].append(reduction.add((source, target), parts[target], (), own=True, adds=True))
    for source, target in pairs:
        if members.sharded:
            gather.add((source, target), parts[source], (), own=False, adds=False)
        else:
            reduction.add((source, target), parts[source], summed[source], own=True, adds=False)
    kind = "reduce-scatter" if members.sharded else "all-reduce"
    return Exchange(count, gather.done(), reduction.done(), kind, tuple((part,) for part in parts))


def in_two_levels(members: Members) -> Exchange:
    """Inside datacenters and between them; see hierarchical.py."""
    return hierarchical(members.sites, sharded=members.sharded, chunks=members.chunks)


ALGORITHMS: Mapping[str, Algorithm] = {
    "ring": Algorithm(ring, "around a ring", cyclic=True),
    "hierarchical": Algorithm(in_two_levels, "inside datacenters and between them", chunked=True),
    "direct": Algorithm(direct, "by sending every other replica its part"),
    "torch": Algorithm(torch_ring, "by gloo itself", cyclic=True, by_gloo=True),
}
"""By the name in a workload. All that are not `by_gloo` are carried out message by message as they stand here."""


@cache
def exchange(algorithm: str, members: Members) -> Exchange:
    """What members do under an algorithm of that name. Raises KeyError for a name that is not known."""
    return ALGORITHMS[algorithm].messages(members)
