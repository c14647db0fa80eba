"""The states of ranks in each other's memory: who keeps whose, what is sent for that, and what of it a failure leaves.

A rank's neighbour is the one that has the same stages in the next replica; in a job of one replica the next rank of the
pipeline, and in one of one stage the next tensor rank; behind the last comes the first. So no two ranks have the same
neighbour, and every state is on two nodes: with its rank, and with its rank's neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.plan import routes
from testbed.plan.exchange import exchange_at
from testbed.plan.framing import part_bytes, there_and_back
from testbed.plan.mesh import Mesh
from testbed.plan.moved_weights import MOMENTS
from testbed.plan.network_state import planned
from testbed.plan.plan import Case, Job, Network, Plan
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.recovery import Failure, MemoryCheckpoints
from testbed.plan.traffic import acknowledging_s

HEADER_ELEMENTS = 2
"""Ahead of the numbers of a state: how far training has come, and how often the optimizer has stepped."""


class StatePiece(NamedTuple):
    """Numbers that stand one after the other in what a rank holds, and will in what another one does."""

    first: int
    """Of all that the source holds, the first that goes."""
    to: int
    """Where in what the target holds that comes."""
    numbers: int
    """How many."""


class StateMessage(NamedTuple):
    """A rank's state on its way to another rank's memory, or pieces of states; ranks count from 0."""

    whose: int
    """Of pieces the target, whatever they are of."""
    source: int
    """The rank itself, or its neighbour that keeps it."""
    target: int
    """Of pieces also the source itself, which has them in another place then."""
    payload_bytes: int
    pieces: tuple[StatePiece, ...] = ()
    """() where it is a rank's whole state."""


def neighbours(mesh: Mesh) -> tuple[int, ...]:
    """Per rank, counted from 0, in whose memory its state is kept."""
    found = []
    for rank in mesh.ranks:
        replica, stage, tensor_rank = mesh.coordinates(rank)
        if mesh.dp > 1:
            replica = (replica + 1) % mesh.dp
        elif mesh.pp > 1:
            stage = (stage + 1) % mesh.pp
        else:
            tensor_rank = (tensor_rank + 1) % mesh.tp
        found.append(mesh.rank(replica, stage, tensor_rank) - mesh.first_rank)
    return tuple(found)


def failed_ranks(job: Job, failure: Failure) -> frozenset[int]:
    """The ranks that fail with a failure, counted from 0: of a datacenter that is cut off, those there. None where the
    job has nothing there."""
    if failure.rank is not None:
        return frozenset((failure.rank,))
    there = [node for node in job.nodes if failure.place in (node, routes.datacenter_of(node))]
    return frozenset(job.nodes.index(node) for node in there)


def cut_directions(network: Network, failure: Failure) -> tuple[int, ...]:
    """The directions that carry nothing while a datacenter is cut off; () where it is lost."""
    if failure.cut_s is None:
        return ()
    ends = [(direction.source, direction.target) for direction in planned(network).links]
    return tuple(index for index, pair in enumerate(ends) if failure.place in pair)


def needed_bytes(job: Job, case: Case) -> tuple[int, ...]:
    """Per rank, bytes of its state: weights, what the optimizer keeps, and a header, as far as the model's description
    knows them."""
    stages, element = case.jobs[0].stage_to_rank, job.workload.model.element_bytes
    of_stage = [_elements(job, stages, stage) for stage in range(len(stages))]
    held = (_held(stages, job.mesh.coordinates(rank).pipeline_rank) for rank in job.mesh.ranks)
    return tuple(element * (HEADER_ELEMENTS + sum(of_stage[stage] for stage in each)) for each in held)


def whole_state_bytes(job: Job, case: Case) -> tuple[int, ...]:
    """The same of a job whose replicas all have the whole state, however many there are."""
    alone = replace(job, mesh=replace(job.mesh, dp=1))
    each = needed_bytes(alone, case)
    return each * job.mesh.dp


def state_bytes(job: Job, case: Case, memory: MemoryCheckpoints) -> tuple[int, ...]:
    """Per rank, payload bytes of the message that its state is, padding included."""
    needed, element, asked = needed_bytes(job, case), job.workload.model.element_bytes, memory.state_bytes
    return needed if asked is None else (element * math.ceil(asked / element),) * len(needed)


def _held(stages: Sequence[int], pipeline_rank: int) -> list[int]:
    return [number for number, holder in enumerate(stages) if holder == pipeline_rank]


def _elements(job: Job, stages: Sequence[int], stage: int) -> int:
    """Numbers in the state of one stage on one of the ranks that hold it: the most that any of its replicas keeps."""
    workload = job.workload
    count = workload.model.rank_parameter_count(stage, len(stages), workload.parallelism.tensor)
    stepped = count
    if job.mesh.dp > 1:
        exchange = exchange_at(job, stages[stage])
        cells = [sum(behind - first for first, behind in own) for own in exchange.shards]
        most = max(cells) if exchange.gather else exchange.n_cells
        stepped = most * math.ceil(count / exchange.n_cells)
    return count + MOMENTS[workload.optimizer.kind] * stepped


def saving(mesh: Mesh, sizes: Sequence[int]) -> tuple[StateMessage, ...]:
    """What is sent for a checkpoint, of states of these sizes: by every rank its own."""
    return tuple(StateMessage(rank, rank, to, sizes[rank]) for rank, to in enumerate(neighbours(mesh)))


def restoring(mesh: Mesh, sizes: Sequence[int], lost: Collection[int]) -> tuple[StateMessage, ...] | None:
    """What is sent where the memory of these ranks is lost, so that every state is on two nodes again; None where some
    state is on none.

    A lost rank gets its own state from its neighbour, and from the rank whose neighbour it is the one that it keeps.
    """
    to = neighbours(mesh)
    if any(to[rank] in lost for rank in lost):
        return None
    found = []
    for rank in sorted(lost):
        kept = to.index(rank)
        found += [
            StateMessage(rank, to[rank], rank, sizes[rank]),
            StateMessage(kept, kept, rank, sizes[kept]),
        ]
    return tuple(found)


def joining(mesh: Mesh, sizes: Sequence[int], new: Collection[int]) -> tuple[StateMessage, ...]:
    """What is sent where these replicas have no state yet, and every other one has the whole: by the next one that has
    it, as neighbours do."""
    there = [replica for replica in range(mesh.dp) if replica not in new]
    found = []
    for replica in sorted(new):
        giver = next((other for other in there if other > replica), there[0])
        for target, source in zip(mesh.ranks_of(replica), mesh.ranks_of(giver), strict=True):
            ends = source - mesh.first_rank, target - mesh.first_rank
            found.append(StateMessage(ends[1], *ends, sizes[ends[0]]))
    return tuple(found)


def state_parts(job: Job, message: StateMessage) -> tuple[float, ...]:
    """Payload bytes of what each of a job's streams carries of a message."""
    return part_bytes(message.payload_bytes, job.workload.model.element_bytes, job.workload.streams)


class StateTraffic(NamedTuple):
    """Of one direction, for one exchange of states."""

    wire_bytes: float
    messages: int


def state_traffic(plan: Plan, case: Case, messages: Sequence[StateMessage]) -> tuple[StateTraffic, ...]:
    """Per direction of the network, then per network card, what the only job's states bring, all that is sent back
    included."""
    (job,), route_of, host = plan.jobs, RankRoutes(plan, case), plan.host_costs
    count = len(route_of.network.everything)
    bytes_, number = [0.0] * count, [0] * count
    for message in messages:
        source, target = (job.mesh.first_rank + rank for rank in (message.source, message.target))
        gso = plan.framing.gso_bytes[route_of.datacenter(source)]
        for part in state_parts(job, message):
            there, back = there_and_back(part, gso, host.gloo_bytes, host.notice_bytes)
            for ends, size in (((source, target), there), ((target, source), back)):
                for index in route_of(*ends):
                    bytes_[index] += size
                    number[index] += 1
    return tuple(StateTraffic(*totals) for totals in zip(bytes_, number, strict=True))


def state_acknowledgements_s(plan: Plan, case: Case, messages: Sequence[StateMessage]) -> float:
    """As `acknowledging_s`, of the only job's states."""
    (job,) = plan.jobs
    first = job.mesh.first_rank
    sent = (
        (first + message.source, first + message.target, part, 1)
        for message in messages
        for part in state_parts(job, message)
    )
    return acknowledging_s(plan, RankRoutes(plan, case), sent)


def by_source(messages: Sequence[StateMessage]) -> Mapping[int, list[StateMessage]]:
    """What each rank sends, in order."""
    found: dict[int, list[StateMessage]] = {}
    for message in messages:
        found.setdefault(message.source, []).append(message)
    return found
