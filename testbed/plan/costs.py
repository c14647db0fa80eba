"""What a plan costs, as the scheduling problem of one job: durations, memory, messages and the links they cross."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Literal, NamedTuple

from testbed.errors import BadInput, DoesNotFit
from testbed.model.simulate import simulate
from testbed.pipeline.collectives import Collective, CollectiveMessage, side_by_side
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import peak_in_flight
from testbed.pipeline.problem import NO_CARD, Exchanged, PipelineRoutes, Problem, Transfer
from testbed.plan import counts, routes
from testbed.plan.background import streams_on
from testbed.plan.exchange import exchange_at, sites_of
from testbed.plan.framing import ACK_BYTES, MSS, part_bytes, sent_and_acknowledged, super_packet_bytes, wire_bytes
from testbed.plan.microbatches import cuts_of, job_in, memory_in
from testbed.plan.network_state import link_costs
from testbed.plan.plan import Case, Job, JobSchedule, Plan, Profile
from testbed.plan.rank_routes import RankRoutes
from testbed.plan.state_exchange import state_bytes, whole_state_bytes
from testbed.plan.tensor_exchanges import TensorExchange, of_actions
from testbed.plugins import Unusable
from testbed.schedule.registry import family_of
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import Pacing, Workload
from testbed.trace.tables import Trace

KEPT_WHEN_RECOMPUTING = 2 / 34
"""Share of a layer's activation memory that its input is: 2 s b h of 34 s b h bytes (Korthikanti et al. 2022, section
4.1)."""


def problem(plan: Plan, choice: ScheduleChoice, pacing: Pacing | None = None, *, job: int = 0) -> Problem:
    """The scheduling problem that `choice` has to solve for a job, on the default routes.

    `pacing` stands in for the workload's where that is `none` (durations measured on the machine); without it, the
    profile that an earlier run has left in the plan.
    Raises BadInput when there is neither, or when the model has fewer layers than stages.
    """
    stages = stages_of(plan.jobs[job], choice)
    return _problem(plan, plan.jobs[job], stages, choice.memory, pacing, None)


def stages_of(job: Job, choice: ScheduleChoice) -> tuple[int, ...]:
    """The pipeline rank of every stage under a choice. Raises BadInput for a schedule made for other ranks."""
    known = family_of(choice)
    try:
        return known.stage_to_rank(job.mesh.pp)
    except Unusable as error:
        raise DoesNotFit.of(job.workload.name, choice.label, error.value, error.expected) from error


def problem_for(plan: Plan, schedule: Schedule, *, job: int = 0) -> Problem:
    """The scheduling problem of a schedule from elsewhere, with the stages where it has them. Raises BadInput."""
    return _problem(plan, plan.jobs[job], schedule.stage_to_rank, None, None, None)


def problem_of_case(plan: Plan, case: Case, pacing: Pacing | None = None, *, job: int = 0) -> Problem:
    """The scheduling problem of a job in a case, on the case's routes. Raises as `problem`."""
    chosen = case.jobs[job]
    memory = memory_in(plan.jobs[job], chosen)
    return _problem(plan, job_in(plan.jobs[job], chosen), chosen.stage_to_rank, memory, pacing, case)


def schedule_of(plan: Plan, case: Case, *, job: int = 0) -> Schedule | None:
    """The schedule of a job in a case; None where only a run can make it."""
    chosen = case.jobs[job]
    if chosen.rows is None:
        return None
    count = job_in(plan.jobs[job], chosen).workload.microbatches
    return Schedule(case.label, chosen.rows, chosen.stage_to_rank, count)


def predict(plan: Plan, choice: ScheduleChoice, schedule: Schedule) -> Trace:
    """The trace the event model predicts for one iteration of a plan's first job alone, on the default routes."""
    return simulate(problem(plan, choice), schedule, receives=plan.jobs[0].workload.receives)


def predict_case(plan: Plan, case: Case, schedule: Schedule, *, job: int = 0) -> Trace:
    """The same on the routes of a case; without pacing, with what actions take in a schedule that holds so much."""
    receives = plan.jobs[job].workload.receives
    return simulate(timed_problem(plan, case, schedule, job=job), schedule, receives=receives)


def timed_problem(plan: Plan, case: Case, schedule: Schedule, *, job: int = 0) -> Problem:
    """As `problem_of_case`, with the times that a profiled job's actions take under this very schedule."""
    profile = plan.jobs[job].profile
    return problem_of_case(plan, case, None if profile is None else profiled(profile, schedule), job=job)


def profiled(profile: Profile, schedule: Schedule) -> Pacing:
    """What the actions of a schedule take: between the two profiles, by what every rank has in flight at most."""
    shares = [
        min(1.0, max(0.0, (held - few) / (many - few))) if many > few else 0.0
        for held, few, many in zip(peak_in_flight(schedule), profile.held_few, profile.held_many, strict=True)
    ]

    def of(kind: Literal["F", "I", "W", "B"]) -> list[float]:
        return [
            (1.0 - share) * profile.few.of(kind, rank) + share * profile.many.of(kind, rank)
            for rank, share in enumerate(shares)
        ]

    return Pacing.model_construct(F=of("F"), I=of("I"), W=of("W"), B=of("B"))


def largest_burst_bytes(plan: Plan) -> int:
    """The most that a rank may have on its way to another in any case, in whole segments.

    Each message out belongs to a microbatch in flight on the rank that sends it (F) or takes it (G).
    """
    sent = [_burst_bytes(job, chosen) for case in _cases(plan) for job, chosen in case]
    recovery = plan.recovery
    if recovery is not None and recovery.checkpoints is not None and recovery.checkpoints.memory is not None:
        (job,), memory = plan.jobs, recovery.checkpoints.memory
        # a rank whose memory is lost gets two states, and of two ranks both from the other one
        sent += [2 * _in_segments(size) for case in plan.cases for size in state_bytes(job, case, memory)]
    if recovery is not None and recovery.elastic is not None:
        (job,) = plan.jobs
        # one rank may be the only one left that has the state of all the others
        sent += [job.mesh.dp * _in_segments(size) for case in plan.cases for size in whole_state_bytes(job, case)]
    return max([1, *sent])


def _cases(plan: Plan) -> list[list[tuple[Job, JobSchedule]]]:
    """Of every case, in each number of microbatches that it may have, the jobs as they are in it."""
    every = [cut for case in plan.cases for cut in cuts_of(plan, case)]
    pairs = [zip(plan.jobs, case.jobs, strict=True) for case in every]
    return [[(job_in(job, chosen), chosen) for job, chosen in of_case] for of_case in pairs]


def _most_between_replicas_bytes(job: Job, chosen: JobSchedule) -> int:
    """The most that one rank sends its like of another replica in an iteration, for all of its stages: all of it may be
    on its way at once.
    """
    if job.mesh.dp == 1:
        return 0
    most = 0
    for rank, stages in Counter(chosen.stage_to_rank).items():
        exchange = exchange_at(job, rank)
        cell = job.workload.cell_bytes(len(chosen.stage_to_rank), exchange.n_cells)
        sent: Counter[tuple[int, int]] = Counter()
        for step in (*exchange.gather, *exchange.reduction):
            sent[step.source, step.target] += stages * step.n_cells * _in_segments(cell)
        most = max(most, *sent.values())
    return most


def _burst_bytes(job: Job, chosen: JobSchedule) -> int:
    workload, stages = job.workload, chosen.stage_to_rank
    pairs = Counter(pair for a, b in pairwise(stages) if a != b for pair in ((a, b), (b, a)))
    sent = max(pairs.values(), default=0) * workload.microbatches
    kept = KEPT_WHEN_RECOMPUTING if workload.recompute else 1.0
    limit = max(_limits(workload, chosen.choice.memory)) / kept
    most = min(sent, 2 * math.ceil(limit) * len(stages) // job.mesh.pp)
    return max(max(1, most) * _in_segments(workload.message_bytes()), _most_between_replicas_bytes(job, chosen))


def _in_segments(payload: int) -> int:
    """Bytes that a message takes of a window, which counts segments however full they are: its own, one for gloo's
    header, and one for the notice of a message that comes the other way."""
    return MSS * (-(-payload // MSS) + 2)


def _problem(
    plan: Plan,
    job: Job,
    stages: tuple[int, ...],
    memory: float | None,
    pacing: Pacing | None,
    case: Case | None,
) -> Problem:
    """The problem of a job's first pipeline, whose ranks count from 0, on a case's routes or the default ones."""
    workload, mesh, host = job.workload, job.mesh, plan.host_costs
    times, chunks = _times(job, pacing), _stages_per_rank(job, stages)
    again, kept = (1.0, KEPT_WHEN_RECOMPUTING) if workload.recompute else (0.0, 1.0)
    taken = RankRoutes(plan, case)
    members = [mesh.pipeline(*of) for of in product(range(mesh.dp), range(mesh.tp))]
    pipelines = tuple(pipeline_routes(plan, taken, ranks, cards=mesh.tp > 1) for ranks in members)
    exchanged = [_collectives(plan, taken, job, rank, chunks) for rank in stages] if mesh.dp > 1 else []
    payload = workload.message_bytes()
    parts = parts_on_wire(plan, job, payload)
    return Problem(
        n_microbatches=workload.microbatches,
        stage_to_rank=stages,
        forward_s=tuple(times.slowest("F", rank) / chunks for rank in stages),
        input_s=tuple((times.slowest("I", rank) + again * times.slowest("F", rank)) / chunks for rank in stages),
        weight_s=tuple(times.slowest("W", rank) / chunks for rank in stages),
        backward_s=tuple(
            (times.slowest("B", rank) + again * times.slowest("F", rank)) / chunks
            for rank in stages
            if times.B is not None
        ),
        memory_limit=tuple(_limits(workload, memory)),
        activation=(kept / chunks,) * len(stages),
        input_memory=((1.0 - kept) / chunks,) * len(stages),
        message_bytes=(sum(parts),) * (len(stages) - 1),
        payload_bytes=(float(payload),) * (len(stages) - 1),
        part_bytes=(parts,) * (len(stages) - 1) if workload.streams > 1 else (),
        links=link_costs(taken.network),
        stamped=plan.changes_for == "comers",
        streams=streams_on(plan, taken.network, 0.0 if plan.rounds == "free" else None),
        cards=frozenset(range(len(taken.network.links), len(taken.network.everything))),
        pipelines=pipelines,
        exchanged=_exchanged(plan, job, stages) if any(pipeline.rank_cards for pipeline in pipelines) else (),
        exchange_notice=Transfer(host.notice_bytes, ACK_BYTES),
        tensor=mesh.tp,
        numbers=tuple(tuple(rank - mesh.first_rank for rank in ranks) for ranks in members),
        handover_s=host.handover_s,
        send_s=host.send_s,
        send_s_per_byte=host.send_s_per_byte,
        wake_s=host.wake_s,
        begins_s=_staggered(plan, job, stages, [gather for gather, _ in exchanged]).begins_s if exchanged else (),
        unnoticed_wait_s=host.unnoticed_wait_s if workload.pacing else 0.0,
        tie_s=host.tie_s,
        notice_bytes=host.notice_bytes,
        receives=workload.receives,
        all_gather=tuple(gather for gather, _ in exchanged if gather.steps),
        reductions=tuple(reduction for _, reduction in exchanged),
    )


def _times(job: Job, pacing: Pacing | None) -> Pacing:
    """What a job's actions take: as its workload says, else `pacing`, else its profile. Raises BadInput for none."""
    measured = None if job.profile is None else job.profile.few
    times = job.workload.pacing or pacing or measured
    if times is None:
        expected = "seconds for F, I and W: without them only a run can tell the time"
        raise BadInput.of(job.workload.name, "pacing", "none", expected)
    return times


def _exchanged(plan: Plan, job: Job, stages: tuple[int, ...]) -> tuple[Exchanged, ...]:
    """What each tensor rank of a stage sends every other one of it."""
    host, node_of = plan.host_costs, dict(zip(job.mesh.ranks, job.nodes, strict=True))

    def sent(stage: int, exchanges: Sequence[TensorExchange]) -> Transfer:
        site = routes.datacenter_of(node_of[job.mesh.rank(0, stages[stage], 0)])
        more = plan.framing.gso_bytes[site], host.gloo_bytes, host.notice_bytes
        return Transfer(*sent_and_acknowledged(exchanges[0].payload_bytes, *more)) if exchanges else Transfer()

    found = []
    for stage in range(len(stages)):
        kinds = of_actions(job, stages, stage)
        (*ahead, sums), (*behind, again) = kinds.forward, kinds.backward
        sizes = sent(stage, [sums]), sent(stage, [again])
        found.append(Exchanged(*sizes, sums.number, again.number, sent(stage, ahead), sent(stage, behind)))
    return tuple(found)


def _limits(workload: Workload, memory: float | None) -> list[float]:
    """Microbatches in flight allowed on each rank: as asked for, and no more than HBM holds at full scale."""
    asked = [memory] * workload.parallelism.pipeline if memory is not None else workload.memory_limits()
    caps = counts.memory_caps(workload)
    return asked if caps is None else [min(pair) for pair in zip(asked, caps, strict=True)]


class _Stagger(NamedTuple):
    """How far the ranks of a job with replicas begin apart, so that no chance tells whose message comes first."""

    begins_s: tuple[float, ...]
    """Of every rank of all replicas, from the job's start."""
    next_s: float
    """When somebody else may begin."""


def _staggered(plan: Plan, job: Job, stages: tuple[int, ...], gathers: Sequence[Collective]) -> _Stagger:
    """`gathers` are per stage, and none without replicas: their pipeline has nobody to wait for."""
    host, positions = plan.host_costs, range(job.mesh.dp * job.mesh.pp)
    sites = [sites_of(job)[position * job.mesh.tp] for position in positions]
    at_once: Counter[tuple[int, int]] = Counter()
    """By member of a collective (replicas, of each its tensor ranks) and pipeline rank, bytes sent as it begins ..."""
    leaving: Counter[int] = Counter()
    """... and by position (Mesh.position), those that leave the datacenter."""
    for rank, gather in zip(stages, gathers, strict=True):
        for step in gather.steps:
            if not step.after:
                position, target = (member // job.mesh.tp * job.mesh.pp + rank for member in (step.source, step.target))
                size = math.ceil(gather.size(step))
                at_once[step.source, rank] += size
                leaving[position] += size * (sites[position] != sites[target])
    each_s = host.stagger_s + host.stagger_s_per_byte * max(at_once.values(), default=0)
    shared_s = host.shared_stagger_s + host.shared_stagger_s_per_byte * max(leaving.values(), default=0)
    before = [
        sum(leaving[other] > 0 and sites[other] == sites[position] for other in range(position))
        for position in positions
    ]
    begins_s = [position * each_s + before[position] * (leaving[position] > 0) * shared_s for position in positions]
    return _Stagger(tuple(begins_s), max(begins_s) + each_s + shared_s)


def beginning_s(plan: Plan, job: Job) -> float:
    """How long it takes until all ranks of a job have begun an iteration: the next job begins behind them.

    At one and the same instant nothing but chance would tell which job's messages a shared link takes first.
    """
    stages, taken = tuple(range(job.mesh.pp)), RankRoutes(plan, None)
    gathers = [_collectives(plan, taken, job, rank, 1)[0] for rank in stages] if job.mesh.dp > 1 else []
    return _staggered(plan, job, stages if gathers else (), gathers).next_s


def _stages_per_rank(job: Job, stages: tuple[int, ...]) -> int:
    """The same on every rank, which its stages share equally. Raises DoesNotFit, also with fewer layers than stages."""
    rows, n_ranks, name = max(stages) + 1, job.mesh.pp, job.workload.name
    if rows != n_ranks:
        raise DoesNotFit.of(name, "parallelism.pipeline", n_ranks, f"{rows}, the ranks of the schedule")
    counts = [stages.count(rank) for rank in range(n_ranks)]
    if len(set(counts)) > 1:
        expected = "as many on every rank: each is an equal share of its rank's layers and time"
        raise DoesNotFit.of(name, "stages per rank", ", ".join(map(str, counts)), expected)
    if (layers := job.workload.model.layers) < len(stages):
        expected = f"at least one layer for each of {len(stages)} stages ({counts[0]} per rank)"
        raise DoesNotFit.of(name, "model.layers", layers, expected)
    return counts[0]


def parts_on_wire(plan: Plan, job: Job, payload_bytes: int) -> tuple[float, ...]:
    """Wire bytes, with what gloo adds, of the parts in which a job's streams carry a message."""
    workload, gloo_bytes = job.workload, plan.host_costs.gloo_bytes
    parts = part_bytes(payload_bytes, workload.model.element_bytes, workload.streams)
    return tuple(float(wire_bytes(part) + gloo_bytes) for part in parts)


def pipeline_routes(plan: Plan, taken: RankRoutes, ranks: Sequence[int], *, cards: bool) -> PipelineRoutes:
    """How the messages between the ranks of one pipeline travel; with `cards`, tensor ranks' over theirs as well."""
    pairs = list(product(range(len(ranks)), repeat=2))
    found = {(a, b): route for a, b in pairs if (route := taken(ranks[a], ranks[b]))}
    pieces = [float(super_packet_bytes(plan.framing.gso_bytes[taken.datacenter(rank)])) for rank in ranks]
    held = [taken.card(rank) for rank in ranks]
    # tensor ranks are in one datacenter, of which all nodes have a card or none
    own = tuple(card[0] if card else NO_CARD for card in held) if cards and any(held) else ()
    return PipelineRoutes(found, tuple(pieces), (float(ACK_BYTES),) * len(ranks), own)


def _collectives(plan: Plan, taken: RankRoutes, job: Job, rank: int, chunks: int) -> tuple[Collective, Collective]:
    """What the replicas of one of the stages of a pipeline rank, which has so many, gather and reduce.

    Members are numbered as the pipelines of a problem are: replica after replica, its tensor ranks one after the other.
    """
    tensor, exchange = job.mesh.tp, exchange_at(job, rank)
    cell = job.workload.cell_bytes(chunks * job.mesh.pp, exchange.n_cells)
    members = [job.mesh.rank(replica, rank, t) for replica, t in product(range(job.mesh.dp), range(tensor))]
    found = {
        (a, b): route
        for (a, source), (b, target) in product(enumerate(members), repeat=2)
        if a % tensor == b % tensor and (route := taken(source, target))
    }

    def of(steps: tuple[CollectiveMessage, ...], kind: str) -> Collective:
        payload = {cells: float(cells * cell) for cells in {step.n_cells for step in steps}}
        parts = {cells: parts_on_wire(plan, job, cells * cell) for cells in payload}
        wire = {cells: sum(each) for cells, each in parts.items()}
        several = parts if job.workload.streams > 1 else {}
        return Collective(side_by_side(steps, tensor), wire, found, payload, kind, several)

    return of(exchange.gather, "all-gather"), of(exchange.reduction, exchange.reduces_to)
