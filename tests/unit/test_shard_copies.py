"""Shards of a shared optimizer in two memories each: who has what, and what moves where replicas become others."""

from __future__ import annotations

import random
from collections.abc import Collection
from itertools import product
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.plan.mesh import Mesh
from testbed.plan.plan import Job, Plan
from testbed.plan.shard_copies import (
    Sharing,
    all_held,
    copies,
    cut_anew,
    held_bytes,
    owned_elements,
    shard_runs,
)
from testbed.plan.state_exchange import HEADER_ELEMENTS
from testbed.planning import file
from testbed.planning.fewer_replicas import job_of

Number = tuple[int, int, int] | str
"""Of which stage, parameters or what is kept of them, which one; or of a header."""
SITES = ("paris", "warsaw")


def planned(tmp_path: Path, replicas: int, *settings: str) -> Plan:
    words = ["two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--iterations", "2"]
    for one in (f"parallelism.data={replicas}", "parallelism.pipeline=2", "model.d_model=12", *settings):
        words += ["--set", one]
    done = run_testbed("plan", *words, "-o", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    return file.read(tmp_path / "plan.json")


def shard(job: Job, stages: tuple[int, ...], rank: int) -> list[Number]:
    found: list[Number] = [f"header {place}" for place in range(HEADER_ELEMENTS)]
    for stage, kind, elements, first in shard_runs(job, stages, rank):
        assert first == len(found)
        found += [(stage, kind, element) for element in elements]
    return found


def memories(sharing: Sharing, stages: tuple[int, ...]) -> dict[tuple[int, int], list[Number]]:
    """By replica and pipeline rank, all that the rank holds."""
    found = {}
    for replica, place in product(sharing.replicas, range(sharing.job.mesh.pp)):
        owners = [owner for owner in sharing.replicas if owner == replica or sharing.after(owner) == replica]
        each = sorted(owners, key=lambda owner: owner != replica)
        found[replica, place] = [n for one in each for n in shard(sharing.job, stages, sharing.rank(one, place, 0))]
    return found


def sharing_of(job: Job, replicas: Collection[int]) -> Sharing:
    each = tuple(sorted(replicas))
    return Sharing(job_of(job, each), each)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "direct"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_who_goes_on_holds_its_shard_and_a_copy_whoever_was_lost(
    tmp_path: Path, algorithm: str, optimizer: str
) -> None:
    draw = random.Random(f"{algorithm} {optimizer}")
    at = [f"{site}/{node}" for site in SITES for node in (1, 2, 3)]
    draw.shuffle(at)
    others = ", ".join(f"[{at[place]}, {at[place + 1]}]" for place in (0, 2, 4))
    exchange = f"data_parallel={{algorithm: {algorithm}, replicas: [{others}]}}"
    job = planned(tmp_path, 4, exchange, f"optimizer.kind={optimizer}").jobs[0]
    stages, tried = (0, 1), 0
    while tried < 12:
        before = sharing_of(job, draw.sample(range(4), draw.randint(1, 4)))
        lost = set(draw.sample(before.replicas, draw.randint(0, len(before.replicas) - 1)))
        left = set(before.replicas) - lost
        if not all_held(before.replicas, left):
            continue
        tried += 1
        new = draw.sample([one for one in range(4) if one not in left], draw.randint(0, 4 - len(left)))
        after = sharing_of(job, left.union(new))
        had, wanted = memories(before, stages), memories(after, stages)
        got: dict[tuple[int, int], list[Number | None]] = {key: [None] * len(held) for key, held in wanted.items()}
        sent = set()
        for message in cut_anew(stages, before, after, left):
            source, target = (after.job.mesh.coordinates(rank) for rank in (message.source, message.target))
            ends = [(after.replicas[one.replica], one.pipeline_rank) for one in (source, target)]
            assert ends[0][0] in left, "who is back has nothing"
            assert (message.source, message.target) not in sent, "one message between two"
            sent.add((message.source, message.target))
            for first, to, numbers in message.pieces:
                moved = had[ends[0]][first : first + numbers]
                got[ends[1]][to : to + numbers] = moved
                if ends[0] != ends[1] and ends[1][0] in left:
                    assert not set(moved).intersection(had[ends[1]]), "it has that itself"
            numbers = sum(piece.numbers for piece in message.pieces)
            assert message.payload_bytes == job.workload.model.element_bytes * numbers
        for key, held in wanted.items():
            of_shard = len(shard(after.job, stages, after.rank(*key, 0)))
            assert got[key][:of_shard] == held[:of_shard]
            assert got[key][of_shard:] == [None] * min(2, len(held) - of_shard) + held[of_shard + 2 :]


def test_each_element_is_one_replicas_and_its_copy_is_the_next_ones(tmp_path: Path) -> None:
    job, stages = planned(tmp_path, 3).jobs[0], (0, 1)
    for stage in stages:
        elements = [set(e) for r in range(3) for e in owned_elements(job, stages, stage, 2 * r + stage)]
        count = job.workload.model.rank_parameter_count(stage, 2, 1)
        assert sum(map(len, elements)) == len(set().union(*elements)) == count
    sizes = held_bytes(job, stages)
    assert [(one.source, one.target) for one in copies(job, stages)] == [(r, (r + 2) % 6) for r in range(6)]
    assert all(sizes[one.target][1] == sizes[one.source][0] == one.payload_bytes for one in copies(job, stages))
    alone = job_of(job, (1,))
    assert copies(alone, stages) == ()
    assert [kept for _, kept in held_bytes(alone, stages)] == [0, 0]
    whole = sum(own for own, _ in sizes) - 2 * 4 * len(sizes)
    assert sum(own for own, _ in held_bytes(alone, stages)) - 2 * 4 * 2 == whole, "by itself it has all of it"


def test_two_replicas_have_all_and_one_that_is_left_is_sent_nothing(tmp_path: Path) -> None:
    job, stages = planned(tmp_path, 3).jobs[0], (0, 1)
    messages = cut_anew(stages, sharing_of(job, (0, 2)), sharing_of(job, (2,)), {2})
    assert [(one.source, one.target) for one in messages] == [(0, 0), (1, 1)]
    assert not all_held((0, 1, 2), {0})
    assert all_held((0, 1, 2), {0, 2})
    assert all_held((4,), {4})
    assert not all_held((4,), ())
    assert Mesh(1, 2, 1) == job_of(job, (2,)).mesh
