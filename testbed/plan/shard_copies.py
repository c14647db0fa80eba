"""Shards of an optimizer that replicas share (ZeRO-1), each in the memory of two of them: of its own rank, and of the
next replica's. What is sent for that copy, and what is sent where the replicas become others, so that shards are cut
anew among these and each is in two memories again.

A shard has the parameters of its rank's own elements, and what the optimizer keeps of them; the rest of a stage's
parameters is not kept: the next all-gather brings it. What a rank holds is its own shard first, then the copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from testbed.plan.exchange import exchange_of, sites_of
from testbed.plan.moved_weights import MOMENTS, Stages
from testbed.plan.plan import Job
from testbed.plan.state_exchange import HEADER_ELEMENTS, StateMessage, StatePiece, neighbours, saving

Replicas = tuple[int, ...]
"""Their numbers in the whole job, ascending."""


class Sharing(NamedTuple):
    """Replicas that share an optimizer; one may be by itself, and then has all of it."""

    job: Job
    """With these of its replicas alone, its ranks counted from 0."""
    replicas: Replicas

    def rank(self, replica: int, pipeline_rank: int, tensor_rank: int) -> int:
        """Of a replica by its number in the whole job."""
        mesh = self.job.mesh
        return mesh.rank(self.replicas.index(replica), pipeline_rank, tensor_rank) - mesh.first_rank

    def after(self, replica: int) -> int:
        """The one that has the copies of a replica's shards."""
        return self.replicas[(self.replicas.index(replica) + 1) % len(self.replicas)]

    def shards_held(self, replica: int) -> tuple[int, ...]:
        """Whose shards a replica has in memory, its own first."""
        return (replica, *(other for other in self.replicas if other != replica and self.after(other) == replica))


class ShardRun(NamedTuple):
    """Numbers of a shard that stand one after the other."""

    stage: int
    kind: int
    """0: parameters; from 1 on, what the optimizer keeps of them."""
    elements: range
    """Which parameters of the stage, numbered one after the other."""
    first: int
    """Where in the shard they begin."""


def shard_runs(job: Job, stages: Stages, rank: int) -> list[ShardRun]:
    """What a rank's shard has, in order, behind its header."""
    _, pipeline_rank, _ = job.mesh.coordinates(job.mesh.first_rank + rank)
    found, first = list[ShardRun](), HEADER_ELEMENTS
    for stage in (number for number, holder in enumerate(stages) if holder == pipeline_rank):
        owned = list(owned_elements(job, stages, stage, rank))
        for kind, elements in product(range(1 + MOMENTS[job.workload.optimizer.kind]), owned):
            found.append(ShardRun(stage, kind, elements, first))
            first += len(elements)
    return found


def owned_elements(job: Job, stages: Stages, stage: int, rank: int) -> Iterator[range]:
    """Which of a stage's parameters a rank keeps up to date itself, and steps."""
    mesh, workload = job.mesh, job.workload
    count = workload.model.rank_parameter_count(stage, len(stages), workload.parallelism.tensor)
    if mesh.dp == 1:
        yield range(count)
        return
    replica, pipeline_rank, tensor_rank = mesh.coordinates(mesh.first_rank + rank)
    sites, members = sites_of(job), mesh.counterparts(pipeline_rank, tensor_rank)
    exchange = exchange_of(workload, [sites[member - mesh.first_rank] for member in members])
    size = exchange.cell_size(count)
    for begin, behind in exchange.shards[replica]:
        if elements := range(size * begin, min(size * behind, count)):
            yield elements


def shard_numbers(job: Job, stages: Stages, rank: int) -> int:
    """How many numbers a rank's shard has, its header included."""
    return HEADER_ELEMENTS + sum(len(run.elements) for run in shard_runs(job, stages, rank))


def held_bytes(job: Job, stages: Stages) -> tuple[tuple[int, int], ...]:
    """Per rank, bytes of its own shard, and of the copy that it has; 0 where there is no other replica."""
    element = job.workload.model.element_bytes
    own = [element * shard_numbers(job, stages, rank) for rank in range(job.mesh.size)]
    if job.mesh.dp == 1:
        return tuple((size, 0) for size in own)
    before = {to: rank for rank, to in enumerate(neighbours(job.mesh))}
    return tuple((size, own[before[rank]]) for rank, size in enumerate(own))


def copies(job: Job, stages: Stages) -> tuple[StateMessage, ...]:
    """What is sent so that each shard is in two memories: by every rank its own. () where there is no other replica."""
    if job.mesh.dp == 1:
        return ()
    return saving(job.mesh, [own for own, _ in held_bytes(job, stages)])


def all_held(replicas: Replicas, left: Collection[int]) -> bool:
    """Whether each shard that these replicas had is with one of those that are left of them."""
    pairs = zip(replicas, (*replicas[1:], *replicas[:1]), strict=True)
    return all(one in left or after in left for one, after in pairs)


def cut_anew(stages: Stages, before: Sharing, after: Sharing, left: Collection[int]) -> tuple[StateMessage, ...]:
    """What goes from whom to whom where others share an optimizer than before, of whom these are left: ranks are
    counted as they are then. Where source and target are one, it is in that rank's memory already.

    A piece comes from its target itself, if that has it; else from the rank whose shard it was, else from its copy.
    """
    found, element, mesh = list[StateMessage](), after.job.workload.model.element_bytes, after.job.mesh
    had, wanted = _Memories(before, stages), _Memories(after, stages)
    for target in range(mesh.size):
        number, *place = mesh.coordinates(mesh.first_rank + target)
        replica = after.replicas[number]
        each = _pieces(had, wanted, left, replica, place)
        # how far training has come, and how often the optimizer has stepped, is the same in all
        giver = replica if replica in left else next(iter(sorted(each) or sorted(left)))
        each.setdefault(giver, []).insert(0, StatePiece(0, 0, HEADER_ELEMENTS))
        for source, pieces in sorted(each.items()):
            size = element * sum(piece.numbers for piece in pieces)
            found.append(StateMessage(target, after.rank(source, *place), target, size, tuple(pieces)))
    return tuple(found)


class _Memories:
    """What all ranks hold."""

    def __init__(self, sharing: Sharing, stages: Stages) -> None:
        self.sharing = sharing
        self._runs = [shard_runs(sharing.job, stages, rank) for rank in range(sharing.job.mesh.size)]

    def runs_of(self, replica: int, place: Sequence[int]) -> list[ShardRun]:
        """Of the shard of a replica's rank at a place of its pipeline."""
        return self._runs[self.sharing.rank(replica, *place)]

    def begins(self, replica: int, place: Sequence[int]) -> dict[int, int]:
        """Whose shards that rank holds, and where among all that it holds each begins."""
        found, first = {}, 0
        for owner in self.sharing.shards_held(replica):
            found[owner] = first
            first += HEADER_ELEMENTS + sum(len(run.elements) for run in self.runs_of(owner, place))
        return found


def _pieces(
    had: _Memories, wanted: _Memories, left: Collection[int], replica: int, place: Sequence[int]
) -> dict[int, list[StatePiece]]:
    """By replica that they come from, what the rank of a replica at a place of its pipeline is to hold."""
    found, before = dict[int, list[StatePiece]](), had.sharing
    to = [
        (first, run) for owner, first in wanted.begins(replica, place).items() for run in wanted.runs_of(owner, place)
    ]
    for owner in before.replicas:
        holders = (replica, owner, before.after(owner))
        holder = next(one for one in holders if one in left and owner in before.shards_held(one))
        begin = had.begins(holder, place)[owner]
        for run, (first, target) in product(had.runs_of(owner, place), to):
            low = max(run.elements.start, target.elements.start)
            count = min(run.elements.stop, target.elements.stop) - low
            if run[:2] == target[:2] and count > 0:
                ends = begin + run.first + low - run.elements.start, first + target.first + low - target.elements.start
                found.setdefault(holder, []).append(StatePiece(*ends, count))
    return found
