"""Algorithms of collectives, played message by message in any order: everybody ends with everything, exactly once."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.pipeline.algorithms import ALGORITHMS, Members, exchange
from testbed.pipeline.collectives import CollectiveMessage

ANY_SITES = st.lists(st.sampled_from("abcd"), min_size=2, max_size=8).map(tuple)
SETTINGS = settings(max_examples=50)

Vector = list[Counter[object]]


def played(
    steps: tuple[CollectiveMessage, ...], own: list[Vector], draw: random.Random, *, ready: set[int]
) -> list[Vector]:
    """What every member has in each cell after all messages; `own` is what it has to begin with, once it is ready."""
    have = [own[m] if m in ready else [Counter[object]() for _ in vector] for m, vector in enumerate(own)]
    carried, taken = dict[int, Vector](), set[int]()
    while len(taken) < len(steps):
        may_send = [
            index
            for index, step in enumerate(steps)
            if index not in carried and taken.issuperset(step.after) and (not step.own or step.source in ready)
        ]
        may_take = [
            index
            for index in carried.keys() - taken
            if steps[index].target in ready and carried.keys() >= set(steps[index].behind)
        ]
        may_begin = [~member for member in range(len(own)) if member not in ready]
        chosen = draw.choice(may_send + sorted(may_take) + may_begin)
        if chosen < 0:
            ready.add(~chosen)
            have[~chosen] = [mine + was for mine, was in zip(own[~chosen], have[~chosen], strict=True)]
            continue
        step = steps[chosen]
        cells = range(*step.cells)
        if chosen not in carried:
            carried[chosen] = [have[step.source][cell].copy() for cell in cells]
            continue
        taken.add(chosen)
        for cell, came in zip(cells, carried[chosen], strict=True):
            have[step.target][cell] = have[step.target][cell] + came if step.adds else came
    return have


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@SETTINGS
@given(sites=ANY_SITES, chunks=st.integers(1, 3), seed=st.integers(0, 1000))
def test_every_member_ends_with_everything_once(
    name: str, *, sharded: bool, sites: tuple[str, ...], chunks: int, seed: int
) -> None:
    """Any grouping into datacenters, messages in any order that their dependencies allow, members ready at any time."""
    found, draw = exchange(name, Members(sites, sharded, chunks)), random.Random(seed)
    members, cells = range(len(sites)), range(found.n_cells)
    owner = {cell: m for m in members for first, behind in found.shards[m] for cell in range(first, behind)}
    assert sorted(owner) == list(cells)
    assert len({sum(behind - first for first, behind in found.shards[m]) for m in members}) == 1
    summed = played(found.reduction, [[Counter({m: 1}) for _ in cells] for m in members], draw, ready=set())
    whole = Counter(dict.fromkeys(members, 1))
    for member in members:
        mine = [cell for cell in cells if not sharded or owner[cell] == member]
        assert [summed[member][cell] for cell in mine] == [whole] * len(mine)
    parameters = [[Counter[object]({cell: int(owner[cell] == m)}) for cell in cells] for m in members]
    gathered = played(found.gather, parameters, draw, ready=set(members))
    if sharded:
        assert gathered == [[Counter({cell: 1}) for cell in cells]] * len(sites)
    for steps in (found.gather, found.reduction):
        assert len({(step.source, step.number) for step in steps}) == len(steps)
        assert all(before < index for index, step in enumerate(steps) for before in step.after)


def test_two_levels_cross_between_datacenters_only_once() -> None:
    """Of a vector of 1: with two datacenters 1 each way for an all-reduce, 1/2 for each half of ZeRO-1; a ring 3/2."""

    def crossing(name: str, *, sharded: bool) -> tuple[float, int]:
        """Share of the vector from the first datacenter to the second in a reduction, and how often in turn."""
        found = exchange(name, Members(("a", "a", "b", "b"), sharded))
        crosses = [(step.source < 2) != (step.target < 2) for step in found.reduction]
        turns: list[int] = []
        for step, over in zip(found.reduction, crosses, strict=True):
            turns.append(over + max((turns[before] for before in step.after), default=0))
        there = sum(step.n_cells for step in found.reduction if step.source < 2 <= step.target)
        return there / found.n_cells, max(turns)

    assert crossing("hierarchical", sharded=False) == (1, 1)
    assert crossing("hierarchical", sharded=True) == (0.5, 1)
    assert crossing("ring", sharded=False) == (1.5, 3)


def test_a_direct_one_takes_two_steps_and_the_bytes_of_a_ring() -> None:
    """Of an all-reduce of four members, each in a datacenter of its own, the other two wait for six in turn."""

    def steps(name: str) -> tuple[int, set[float]]:
        """How many messages wait for each other, and what share of the vector each member sends."""
        found = exchange(name, Members(("a", "b", "c", "d"), sharded=False))
        turns: list[int] = []
        for step in found.reduction:
            turns.append(1 + max((turns[before] for before in step.after), default=0))
        sent = Counter[int]()
        for step in found.reduction:
            sent[step.source] += step.n_cells
        return max(turns), {cells / found.n_cells for cells in sent.values()}

    assert steps("direct") == (2, {1.5})
    assert steps("ring") == steps("hierarchical") == (6, {1.5})
