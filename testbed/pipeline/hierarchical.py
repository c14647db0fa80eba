"""Collectives in two levels: inside every datacenter, and between datacenters, where everything crosses only once.

Gradients are reduce-scattered inside each datacenter; the sums of different datacenters are added between those members
that hold the same part; what has to be everywhere is gathered inside. The vector is cut into chunks, each treated so on
its own, so that one is on its way between datacenters while another one is inside. Datacenters may have any numbers of
members: in each, a part is as much of the vector as members there share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby, pairwise
from typing import NamedTuple

from testbed.pipeline.collectives import After, Cells, CollectiveMessages, Exchange, ring_gather, ring_reduce


class _Chunk(NamedTuple):
    """Who holds what of one chunk. Its cells are as many as members, each one member's own."""

    groups: tuple[tuple[int, ...], ...]
    """The members of every datacenter."""
    owners: tuple[int, ...]
    """The member of each cell."""
    agents: tuple[tuple[int, ...], ...]
    """Per datacenter and cell, the member that holds the cell there: in its own datacenter, its owner."""
    first: int
    """Number of the chunk's first cell."""

    def cell(self, place: int) -> Cells:
        return self.first + place, self.first + place + 1

    def parts(self, group: int) -> list[Cells]:
        """What each member of a datacenter holds there: cells that follow each other."""
        agents = self.agents[group]
        begins = [self.first + agents.index(member) for member in self.groups[group]]
        return list(pairwise([*begins, self.first + len(agents)]))

    def group_of(self, place: int) -> int:
        """The datacenter of a cell's owner."""
        return next(number for number, group in enumerate(self.groups) if self.owners[place] in group)


def _chunk(sites: Sequence[str], number: int) -> _Chunk:
    groups = tuple(tuple(m for m, site in enumerate(sites) if site == name) for name in dict.fromkeys(sites))
    # a member holds as much of the vector as those of its datacenter share it, around the middle of that share:
    # then a cell lies within one part in every datacenter, and parts are cells that follow each other
    middle = {m: Fraction(2 * place + 1, 2 * len(group)) for group in groups for place, m in enumerate(group)}
    owners = tuple(sorted(middle, key=lambda member: middle[member]))
    agents = tuple(tuple(group[int(middle[owner] * len(group))] for owner in owners) for group in groups)
    return _Chunk(groups, owners, agents, number * len(sites))


def hierarchical(sites: Sequence[str], *, sharded: bool, chunks: int) -> Exchange:
    """In two levels; `sites` are the datacenters of the members."""
    cut = [_chunk(sites, number) for number in range(chunks)]
    gather, reduction = CollectiveMessages(), CollectiveMessages()
    for chunk in cut:
        inside = _reduce_inside(reduction, chunk)
        if sharded:
            _reduce_between(reduction, chunk, inside)
            _gather_inside(gather, chunk, _gather_between(gather, chunk, {}, own=False), own=False)
        elif len(chunk.groups) == 2:
            _gather_inside(reduction, chunk, _swap_between(reduction, chunk, inside), own=True)
        else:
            summed = _reduce_between(reduction, chunk, inside)
            _gather_inside(reduction, chunk, _gather_between(reduction, chunk, summed, own=True), own=True)
    shards = tuple(tuple(chunk.cell(chunk.owners.index(m)) for chunk in cut) for m in range(len(sites)))
    kind = "reduce-scatter" if sharded else "all-reduce"
    return Exchange(chunks * len(sites), gather.done(), reduction.done(), kind, shards)


def _reduce_inside(steps: CollectiveMessages, chunk: _Chunk) -> After:
    """Every member gets the sum of its datacenter, of its part."""
    come: After = {}
    for number, group in enumerate(chunk.groups):
        come |= ring_reduce(steps, group, chunk.parts(number))
    return come


def _reduce_between(steps: CollectiveMessages, chunk: _Chunk, inside: After) -> After:
    """Around the datacenters, so that a cell comes to its owner last; returns after which messages it has the sum."""
    count, passed, summed = len(chunk.groups), dict[int, int](), {m: list(inside.get(m, ())) for m in chunk.owners}
    for k in range(count - 1):
        for place, owner in enumerate(chunk.owners):
            home = chunk.group_of(place)
            source, target = (chunk.agents[(home + 1 + hop) % count][place] for hop in (k, k + 1))
            after = [*inside.get(source, ()), *([passed[place]] if k else [])]
            passed[place] = steps.add((source, target), chunk.cell(place), after, own=True, adds=True)
            if target == owner:
                summed[owner].append(passed[place])
    return summed


def _gather_between(steps: CollectiveMessages, chunk: _Chunk, summed: After, *, own: bool) -> After:
    """Around the datacenters, from a cell's owner; returns after which messages every member has its part."""
    count, come = len(chunk.groups), {m: list(summed.get(m, ())) for m in chunk.owners}
    passed = {place: summed.get(owner, ()) for place, owner in enumerate(chunk.owners)}
    for k in range(count - 1):
        for place in range(len(chunk.owners)):
            home = chunk.group_of(place)
            source, target = (chunk.agents[(home + hop) % count][place] for hop in (k, k + 1))
            index = steps.add((source, target), chunk.cell(place), passed[place], own=own and k == 0, adds=False)
            passed[place] = [index]
            come[target].append(index)
    return come


def _swap_between(steps: CollectiveMessages, chunk: _Chunk, inside: After) -> After:
    """Two datacenters swap their sums, which takes one delay where reducing and gathering would take two."""
    come = {m: list(inside.get(m, ())) for m in chunk.owners}
    pairs = list(zip(*chunk.agents, strict=True))
    for (one, other), run in groupby(range(len(pairs)), key=lambda place: pairs[place]):
        places = list(run)
        cells = (chunk.first + places[0], chunk.first + places[-1] + 1)
        there, back = steps.swap((one, other), cells, (inside.get(one, ()), inside.get(other, ())))
        come[other].append(there)
        come[one].append(back)
    return come


def _gather_inside(steps: CollectiveMessages, chunk: _Chunk, come: After, *, own: bool) -> None:
    """Every member gets all parts of its datacenter."""
    for number, group in enumerate(chunk.groups):
        ring_gather(steps, group, chunk.parts(number), come, own=own)
