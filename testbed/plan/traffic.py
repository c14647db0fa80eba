"""How many bytes the messages of an iteration should put on every direction: what counters are held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, permutations, product
from typing import NamedTuple

from testbed.plan import routes
from testbed.plan.events import at_work
from testbed.plan.exchange import exchange_at
from testbed.plan.framing import ACK_BYTES, part_bytes, sent_and_acknowledged, super_packet_bytes, there_and_back
from testbed.plan.microbatches import job_in
from testbed.plan.moved_weights import MovedWeights, moved_weights
from testbed.plan.network_state import NetworkState
from testbed.plan.plan import Case, Job, Plan, Route
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.tensor_exchanges import tensor_exchanges


class PlannedTraffic(NamedTuple):
    """Of one direction in one iteration."""

    wire_bytes: float
    """Messages with headers, what gloo adds to them and its notices of receives, and acknowledgements of all these."""
    messages: int
    """That cross it, and that are acknowledged across it; each part that has a stream of its own counts."""


def planned_traffic(plan: Plan, case: Case, jobs: Sequence[int] | None = None) -> tuple[PlannedTraffic, ...]:
    """Per direction of the network, then per network card: of all jobs at work, or of these alone."""
    route_of = RankRoutes(plan, case)
    count = len(route_of.network.everything)
    bytes_, messages = [0.0] * count, [0] * count
    for source, target, size, number in _sent(plan, case, at_work(plan, case) if jobs is None else jobs):
        for index in route_of(source, target):
            bytes_[index] += number * size
            messages[index] += number
    return tuple(PlannedTraffic(*totals) for totals in zip(bytes_, messages, strict=True))


def swap_traffic(plan: Plan, before: Case, case: Case, job: int) -> list[float]:
    """Wire bytes per direction of the network, then per network card, for a job to go on with another case: weights
    that move, the shortest of messages for receives that are posted and not taken, notices of those posted anew.

    0 where messages stay the same.
    """
    was, now = before.jobs[job], case.jobs[job]
    moved = moved_weights(plan, job, was.stage_to_rank, now.stage_to_rank)
    route_of, host = RankRoutes(plan, case), plan.host_costs
    found = [0.0] * len(route_of.network.everything)
    element = plan.jobs[job].workload.model.element_bytes
    for source, target, _, number in _posted_anew(plan, (before, case), before, job):
        there, back = there_and_back(element, *_overheads(plan, route_of, source))
        for index in route_of(source, target):
            found[index] += number * (there - ACK_BYTES)
        for index in route_of(target, source):
            found[index] += number * (back - host.notice_bytes)
    for source, target, _, number in _posted_anew(plan, (before, case), case, job):
        for index in route_of(source, target):
            found[index] += number * ACK_BYTES
        for index in route_of(target, source):
            found[index] += number * host.notice_bytes
    return _with_weights(plan, job, moved, route_of, found)


def _posted_anew(plan: Plan, swap: tuple[Case, Case], case: Case, number: int) -> Iterator[tuple[int, int, float, int]]:
    """Of one of the two cases of a job's swap, what `_posted_ahead` has, where receives are posted anew for it."""
    was, now = (one.jobs[number] for one in swap)
    moves = was.stage_to_rank != now.stage_to_rank
    if plan.jobs[number].workload.receives == "early" and (moves or was.microbatches != now.microbatches):
        yield from _boundary_messages(plan, case, number)
    if moves:
        yield from _between_replicas(plan, case, number)


def notices_ahead(plan: Plan, case: Case, jobs: Iterable[int]) -> list[float]:
    """Wire bytes per direction of the network, then per network card, of the notices of all receives that these jobs
    post ahead for an iteration, and of their acknowledgements."""
    posted = (
        message
        for job in jobs
        for message in (_between_replicas if plan.jobs[job].workload.receives == "late" else _of_job)(plan, case, job)
    )
    return _notice_bytes(plan, RankRoutes(plan, case), posted)


def _notice_bytes(plan: Plan, route_of: RankRoutes, posted: Iterable[tuple[int, int, float, int]]) -> list[float]:
    """The same of the notices of receives of these messages, as `_messages` has them."""
    found = [0.0] * len(route_of.network.everything)
    for source, target, _, number in posted:
        for index in route_of(source, target):
            found[index] += number * ACK_BYTES
        for index in route_of(target, source):
            found[index] += number * plan.host_costs.notice_bytes
    return found


def _with_weights(
    plan: Plan, job: int, moved: Sequence[MovedWeights], route_of: RankRoutes, found: list[float]
) -> list[float]:
    """The same with what carries the weights that move."""
    workload = plan.jobs[job].workload
    for one in moved:
        for part in part_bytes(one.payload_bytes, workload.model.element_bytes, workload.streams):
            there, back = there_and_back(part, *_overheads(plan, route_of, one.source))
            for index in route_of(one.source, one.target):
                found[index] += there
            for index in route_of(one.target, one.source):
                found[index] += back
    return found


def _overheads(plan: Plan, route_of: RankRoutes, source: int) -> tuple[int, float, float]:
    """What `there_and_back` wants to know of a rank's messages."""
    host = plan.host_costs
    return plan.framing.gso_bytes[route_of.datacenter(source)], host.gloo_bytes, host.notice_bytes


def notices_s(plan: Plan, case: Case, network: NetworkState | None = None) -> float:
    """How long the fullest direction is busy with gloo's notices of the receives that ranks post for an iteration, and
    with their acknowledgements: an iteration that begins earlier finds them in its way. `network`: see RankRoutes."""
    route_of = RankRoutes(plan, case, network)
    bytes_ = _notice_bytes(plan, route_of, _posted_ahead(plan, case, at_work(plan, case)))
    return max(route_of.busy_s(bytes_), default=0.0)


def acknowledgements_s(plan: Plan, case: Case, network: NetworkState | None = None) -> float:
    """As `acknowledging_s`, of an iteration's messages. `network`: see RankRoutes."""
    return acknowledging_s(plan, RankRoutes(plan, case, network), _messages(plan, case, at_work(plan, case)))


def swap_acknowledgements_s(plan: Plan, before: Case, case: Case, job: int) -> float:
    """The same of the weights that move for a job to go on with another case, on links as they are from then on."""
    workload, sent = plan.jobs[job].workload, []
    for one in moved_weights(plan, job, before.jobs[job].stage_to_rank, case.jobs[job].stage_to_rank):
        parts = part_bytes(one.payload_bytes, workload.model.element_bytes, workload.streams)
        sent += [(one.source, one.target, part, 1) for part in parts]
    return acknowledging_s(plan, RankRoutes(plan, case), sent)


def acknowledging_s(plan: Plan, route_of: RankRoutes, sent: Iterable[tuple[int, int, float, int]]) -> float:
    """How long all directions of the fullest way back are busy with the acknowledgements of (source rank, target rank,
    payload bytes, how often), one after the other: the last one is there at most so long, and the delays of its way,
    after the last of these messages. Where links are full both ways they wait behind all of these."""
    host, ways = plan.host_costs, set[Route]()
    bytes_ = [0.0] * len(route_of.network.everything)
    for source, target, payload, number in sent:
        gso = plan.framing.gso_bytes[route_of.datacenter(source)]
        _, acknowledged = sent_and_acknowledged(payload, gso, host.gloo_bytes, host.notice_bytes)
        ways.add(way := route_of(target, source))
        for index in way:
            bytes_[index] += number * acknowledged
    busy_s = route_of.busy_s(bytes_)
    return max((sum(busy_s[index] for index in way) for way in ways), default=0.0)


def notices_round_trip_s(plan: Plan, case: Case, network: NetworkState | None = None) -> float:
    """How long the farthest of these notices and its acknowledgement are on their way, links being free. `network`: see
    RankRoutes."""
    route_of = RankRoutes(plan, case, network)
    directions = route_of.network.everything
    return max(
        (
            sum(directions[index].delay_s for index in (*route_of(target, source), *route_of(source, target)))
            for source, target, _, _ in _posted_ahead(plan, case, at_work(plan, case))
        ),
        default=0.0,
    )


def super_packets_s(plan: Plan, case: Case, pairs: Iterable[tuple[int, int]]) -> list[float]:
    """Per (source rank, target rank), how long the slowest direction on the way is busy with one super-packet of the
    source; 0 where there is none on it. In so large steps messages on a link change places."""
    route_of = RankRoutes(plan, case)
    directions, found = route_of.network.everything, []
    for source, target in pairs:
        size = super_packet_bytes(plan.framing.gso_bytes[route_of.datacenter(source)])
        found.append(max((8 * size / directions[index].rate_bps for index in route_of(source, target)), default=0.0))
    return found


def directions_of_pairs(plan: Plan, case: Case, pairs: Iterable[tuple[int, int]]) -> list[list[str]]:
    """Per (source rank, target rank), the labels of the directions on the way, a network card first."""
    route_of = RankRoutes(plan, case)
    directions = route_of.network.everything
    return [[directions[index].label for index in route_of(source, target)] for source, target in pairs]


def _sent(plan: Plan, case: Case, jobs: Sequence[int]) -> Iterator[tuple[int, int, float, int]]:
    """(source rank, target rank, wire bytes, how often): messages, and what is sent back for each of them."""
    host, nodes = plan.host_costs, routes.nodes_of_ranks(plan)
    for source, target, payload, number in _messages(plan, case, jobs):
        gso = plan.framing.gso_bytes[routes.datacenter_of(nodes[source])]
        there, back = there_and_back(payload, gso, host.gloo_bytes, host.notice_bytes)
        yield source, target, there, number
        yield target, source, back, number


def _messages(plan: Plan, case: Case, jobs: Sequence[int]) -> Iterator[tuple[int, int, float, int]]:
    """(source rank, target rank, payload bytes, how often) of all that ranks send each other in an iteration."""
    yield from _posted_ahead(plan, case, jobs)
    for number in jobs:
        chosen = case.jobs[number]
        job = job_in(plan.jobs[number], chosen)
        for replica, rank in product(range(job.mesh.dp), range(job.mesh.pp)):
            for source, target in permutations(job.mesh.tensor_ranks(replica, rank), 2):
                for exchange in tensor_exchanges(job, chosen.stage_to_rank, rank):
                    yield source, target, exchange.payload_bytes, exchange.number


def _posted_ahead(plan: Plan, case: Case, jobs: Sequence[int]) -> Iterator[tuple[int, int, float, int]]:
    """Those whose receives can be posted a whole iteration ahead: between stages, and between replicas."""
    for number in jobs:
        yield from _of_job(plan, case, number)


def _of_job(plan: Plan, case: Case, number: int) -> Iterator[tuple[int, int, float, int]]:
    """The same of one job."""
    yield from _boundary_messages(plan, case, number)
    yield from _between_replicas(plan, case, number)


def _between_replicas(plan: Plan, case: Case, number: int) -> Iterator[tuple[int, int, float, int]]:
    """(source rank, target rank, payload bytes, how often) of what the replicas of a job's stages send each other."""
    chosen = case.jobs[number]
    job = job_in(plan.jobs[number], chosen)
    mesh, workload, stages = job.mesh, job.workload, chosen.stage_to_rank
    for rank in stages if mesh.dp > 1 else ():
        exchange = exchange_at(job, rank)
        cell = workload.cell_bytes(len(stages), exchange.n_cells)
        for step, tensor_rank in product((*exchange.gather, *exchange.reduction), range(mesh.tp)):
            members = mesh.counterparts(rank, tensor_rank)
            for part in _parts(job, step.n_cells * cell):
                yield members[step.source], members[step.target], part, 1


def _boundary_messages(plan: Plan, case: Case, number: int) -> Iterator[tuple[int, int, float, int]]:
    """(source rank, target rank, payload bytes, how often) of what the stages of a job send each other."""
    chosen = case.jobs[number]
    job = job_in(plan.jobs[number], chosen)
    mesh, workload = job.mesh, job.workload
    for replica, tensor_rank in product(range(mesh.dp), range(mesh.tp)):
        ranks = mesh.pipeline(replica, tensor_rank)
        for a, b in pairwise(chosen.stage_to_rank):
            for part in _parts(job, workload.message_bytes()) if a != b else ():
                yield ranks[a], ranks[b], part, workload.microbatches
                yield ranks[b], ranks[a], part, workload.microbatches


def _parts(job: Job, payload_bytes: float) -> tuple[float, ...]:
    """Of a message, what each of the job's streams carries."""
    return part_bytes(payload_bytes, job.workload.model.element_bytes, job.workload.streams)
