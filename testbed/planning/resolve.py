"""From topology and workloads to a plan: places, routes and framing first, then the cases with their schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from testbed.errors import BadInput, naming_files, require
from testbed.full_scale import similitude
from testbed.full_scale.similitude import Scales
from testbed.pipeline.ir import Row, Schedule
from testbed.pipeline.validate import validate
from testbed.plan import costs, framing, routes
from testbed.plan.background import DATAGRAM_BYTES, check_background, every_s, most_bps
from testbed.plan.events import check_events
from testbed.plan.flows import flows_of
from testbed.plan.host_costs import measured_costs
from testbed.plan.mesh import Mesh
from testbed.plan.network_state import changed_directions, planned
from testbed.plan.plan import (
    Background,
    Case,
    Clock,
    Framing,
    Job,
    JobSchedule,
    Network,
    Node,
    NodeLimit,
    Plan,
    Route,
)
from testbed.plan.recovery import cuts_off
from testbed.plan.timeline import Event, LinkEvent
from testbed.planning.background_file import background_of, read_background
from testbed.planning.link_events import link_events
from testbed.planning.node_assignment import place
from testbed.planning.rank_events import rank_events
from testbed.schedule.registry import Generated, check_choice, generate_choice
from testbed.search.incumbent import Watch
from testbed.spec import load_topology, load_workload
from testbed.spec.choice import ScheduleChoice
from testbed.spec.document import Document
from testbed.spec.model import missing_methods
from testbed.spec.setting import IN_TOPOLOGY, setting
from testbed.spec.topology import Direction, Topology, with_events
from testbed.spec.workload import Pacing, Workload
from testbed.units import show_size

NETEM = "netem"
"""The shaper whose packets keep the rate and the delay that their link had when they came to it."""

BEST = "best"
ROBUST = "robust"
"""Option of it: chosen by the 95th percentile over drawn slots, not by the time of their medians."""
"""Stands for the fastest of all schedules that fit."""


class Combination(NamedTuple):
    """A case to be made: its label, and a choice for every job."""

    label: str
    choices: tuple[ScheduleChoice, ...]


# --- network and jobs ----------------------------------------------------------------------------


def network_of(topology: Topology, at: Scales | None = None) -> Network:
    """Nodes, directions and default routes of a topology, its links as large as the lab has them. Raises BadInput."""
    nodes = tuple(Node(name, routes.datacenter_of(name)) for name in topology.nodes())
    default_routes = routes.default_routes(topology)
    directions = [(f"links.{index // 2}.rate", direction) for index, direction in enumerate(topology.directions())]
    cards = [(f"datacenters.{card.target}.inside.rate", card) for card in topology.cards()]
    links, ends = (
        tuple(_in_the_lab(topology, field, direction, at) for field, direction in some) for some in (directions, cards)
    )
    switches = tuple(name for name, site in topology.datacenters.items() if not site.nodes)
    limits = tuple(
        NodeLimit(node.name, site.memory, site.cpus)
        for node in nodes
        if (site := topology.datacenters[node.datacenter]).memory is not None or site.cpus is not None
    )
    return Network(topology.name, nodes, links, default_routes, ends, switches, limits)


def _in_the_lab(topology: Topology, field: str, asked: Direction, at: Scales | None) -> Direction:
    scaled = asked if at is None else similitude.direction_at(asked, at)
    similitude.check_rate(topology.name, field, asked, scaled, at)
    return scaled


def measurement_of(topology: Topology) -> Plan:
    """A plan without jobs: its links can be measured, that is all."""
    network = network_of(topology)
    return Plan(network, (), (), (), framing_of(network, ()), measured_costs("real"))


def framing_of(network: Network, taken: Iterable[tuple[str, Route]]) -> Framing:
    """The framing towards all default routes from every datacenter, and those that (datacenter, route) flows take."""
    whole = planned(network)
    leaving: dict[str, set[int]] = {name: set() for name in whole.datacenters}
    for default in network.routes:
        leaving[default.source].update(default.route)
    for datacenter, route in taken:
        leaving[datacenter].update(route)
    gso = {
        name: framing.gso_bytes(
            [
                *(whole.links[index] for index in sorted(crossed)),
                *(card for card in whole.cards if card.target == name),
            ]
        )
        for name, crossed in leaving.items()
    }
    return Framing(framing.MTU, gso)


def make_plan(
    topology: Topology, *workloads: Workload, sources: Sequence[str] = (), by_option: Sequence[str] = ()
) -> Plan:
    """The plan of workloads on a topology, still without cases. Raises BadInput when they do not fit together.

    `sources` are the workloads' files, for errors in what only their schedules know: their options. `by_option`: those
    of the topology's events that `--event` has brought, which errors blame.
    """
    host_costs = measured_costs("real")  # as a plan's clock is until with_clock
    at = similitude.common_scales(workloads, host_costs.gloo_bytes)
    workloads = tuple(similitude.at_lab_scale(workload, host_costs.gloo_bytes) for workload in workloads)
    network = network_of(topology, at)
    jobs: list[Job] = []
    taken: set[str] = set()
    for number, workload in enumerate(workloads):
        pipelines = place(topology, workload, frozenset(taken))
        nodes = tuple(node for pipeline in pipelines for node in pipeline)
        taken.update(nodes)
        first = jobs[-1].mesh.ranks.stop if jobs else 0
        degrees = workload.parallelism
        mesh = Mesh(degrees.data, degrees.pipeline, degrees.tensor, first)
        jobs.append(Job(_job_name(workload.name, jobs), 0.0, mesh, nodes, workload))
        _check_schedules(workload, sources[number] if sources else workload.name)
        if workload.transport != workloads[0].transport:
            expected = f"{workloads[0].transport}, as {workloads[0].name} in the same lab"
            raise BadInput.of(workload.name, "transport", workload.transport, expected)
    iterations = min((workload.iterations for workload in workloads), default=0)
    brought = {topology.event(text).text for text in by_option}
    of_links = link_events(topology, network, at, iterations=iterations, brought=brought)
    happens = *of_links, *rank_events(topology, jobs, brought)
    plan = Plan(
        network,
        tuple(jobs),
        (),
        (),
        framing_of(_at_worst(network, happens), ()),
        host_costs,
        events=tuple(sorted(happens, key=lambda event: event.at)),
        transport=workloads[0].transport,
        seed=workloads[0].seed,
    )

    def place_of(number: int) -> tuple[str, str]:
        text = str(plan.events[number])
        return (f"--event {text}" if text in brought else f"{topology.name}: events: {text}"), "event"

    check_events(plan, place_of)
    for job in jobs:
        _check_routes(network, job)
    return _one_after_the_other(with_traffic_beside(plan, background_of(topology, network), topology.name))


def _at_worst(network: Network, events: Sequence[Event]) -> Network:
    """The network with loss and jitter wherever an event brings some: nodes send single packets all the time."""
    chances = {event.direction: event for event in events if isinstance(event, LinkEvent) and event.by_chance}

    def changed(number: int, direction: Direction) -> Direction:
        return direction._replace(loss=direction.loss or 0.5) if number in chances else direction

    return changed_directions(network, changed) if chances else network


def _one_after_the_other(plan: Plan) -> Plan:
    """The plan with its jobs' starts: at the same time, but for what it takes the ranks before to begin."""
    jobs: list[Job] = []
    start_s = 0.0
    for job in plan.jobs:
        jobs.append(replace(job, start_s=start_s))
        start_s += costs.beginning_s(plan, job)
    return replace(plan, jobs=tuple(jobs))


def _job_name(name: str, jobs: Sequence[Job]) -> str:
    """The workload's name, or the first that is free of NAME-2, NAME-3 ...: results are told apart by it."""
    taken = {job.name for job in jobs}
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if free not in taken)


def _check_schedules(workload: Workload, source: str) -> None:
    for index, choice in enumerate(workload.schedules):
        if choice.schedule != BEST:
            check_choice(choice, source, f"schedules.{index}")
        for option, value in choice.options().items() if choice.schedule == BEST else ():
            field, known = f"schedules.{index}.{option}", option == ROBUST
            require(known, source, field, value, f"an option of {BEST} (memory, label, {ROBUST})")
            require(isinstance(value, bool), source, field, value, "true or false")


def _check_routes(network: Network, job: Job) -> None:
    default_route = planned(network).default_route
    for replica in range(job.mesh.dp):
        nodes = pipeline_nodes(job, replica)
        for a, b in pairwise(nodes):
            default_route(a, b)
            default_route(b, a)


def pipeline_nodes(job: Job, replica: int = 0) -> tuple[str, ...]:
    """The nodes of one pipeline, rank by rank; of tensor ranks the first ones."""
    node_of = dict(zip(job.mesh.ranks, job.nodes, strict=True))
    return tuple(node_of[rank] for rank in job.mesh.pipeline(replica))


def cuts(job: Job) -> tuple[int, ...]:
    """Pipeline ranks r whose successor r + 1 is in another datacenter."""
    sites = [routes.datacenter_of(node) for node in pipeline_nodes(job)]
    return tuple(rank for rank, (here, there) in enumerate(pairwise(sites)) if here != there)


def load_plan(
    topology: Path | Document,
    *workloads: Path | Document,
    settings: Sequence[str] = (),
    events: Sequence[str] = (),
    background: Path | None = None,
    **direct: object,
) -> Plan:
    """The plan of files, with more events of links than the topology has, and `background` traffic from a CSV file; see
    `load_files`."""
    network, jobs = load_files(topology, *workloads, settings=settings, **direct)
    network = with_events(network, events)
    sources = [_source(path, job.name) for path, job in zip(workloads, jobs, strict=True)]
    files = {job.name: source for job, source in zip(jobs, sources, strict=True)}
    with naming_files({network.name: _source(topology, network.name)} | files):
        plan = make_plan(network, *jobs, sources=sources, by_option=events)
    return plan if background is None else with_background(plan, background)


def with_background(plan: Plan, path: Path) -> Plan:
    """The plan with more traffic beside its jobs, that of a CSV file. Raises BadInput."""
    return with_traffic_beside(plan, read_background(path, plan.network), str(path))


def with_traffic_beside(plan: Plan, flows: tuple[Background, ...], source: str) -> Plan:
    """The plan with more traffic beside its jobs. Raises BadInput, as of `source`."""
    for job in plan.jobs if flows else ():
        if job.workload.full_scale is not None:
            expected = "no job at full scale, whose network is the lab's at another one"
            raise BadInput.of(source, "background", job.name, expected)
    plan = replace(plan, background=plan.background + flows)
    check_background(plan, planned(plan.network), source)
    return plan


def _source(path: Path | Document, name: str) -> str:
    """What errors call a file, or a document."""
    return str(path) if isinstance(path, Path) else name


def load_files(
    topology: Path | Document, *workloads: Path | Document, settings: Sequence[str] = (), **direct: object
) -> tuple[Topology, list[Workload]]:
    """What files (or documents) say, with settings (KEY=VALUE) laid over the workloads; over the topology where only
    topologies have such a field, or with `topology.` in front.

    `direct` are further fields of the workloads, where not None. Raises BadInput.
    """
    overrides = overrides_of(settings)
    overrides[0].update({key: str(value) for key, value in direct.items() if value is not None})
    return load_topology(topology, overrides[1]), [load_workload(path, overrides[0]) for path in workloads]


def overrides_of(settings: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Settings (KEY=VALUE) of the workloads, and of the topology; of one given twice the last. Raises BadInput."""
    overrides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for written in settings:
        key, separator, value = written.partition("=")
        if not separator or not key:
            raise BadInput.of("--set", "setting", written, "KEY=VALUE")
        name = setting(key)
        in_topology = name.startswith(IN_TOPOLOGY)
        overrides[in_topology][name.removeprefix(IN_TOPOLOGY)] = value
    return overrides


def overrides_of_one(settings: Sequence[str], expected: str) -> dict[str, str]:
    """Settings (KEY=VALUE) where there is no topology that they could be of. Raises BadInput, with what is expected in
    place of one of a topology."""
    of_file, of_topology = overrides_of(settings)
    for name, value in of_topology.items():
        raise BadInput.of("--set", name, value, expected)
    return of_file


# --- schedules -----------------------------------------------------------------------------------


def generate(
    plan: Plan, choice: ScheduleChoice, pacing: Pacing | None = None, watch: Watch | None = None, *, job: int = 0
) -> Generated:
    """The schedule that `choice` names for a job, validated, and what a solver proved of it. Raises BadInput.

    `watch` is told how far the solver has come.
    """
    return generate_choice(choice, costs.problem(plan, choice, pacing, job=job), watch)


def given(plan: Plan, choice: ScheduleChoice, rows: tuple[Row, ...], *, job: int = 0) -> Schedule:
    """The schedule of that label with these rows, validated against a job. Raises BadInput."""
    problem = costs.problem(plan, choice, job=job)
    schedule = Schedule(choice.label, rows, problem.stage_to_rank, problem.n_microbatches)
    validate(schedule, problem)
    return schedule


# --- cases ---------------------------------------------------------------------------------------


def with_cases(plan: Plan, choices: Sequence[ScheduleChoice], made: Mapping[str, Generated]) -> Plan:
    """The plan of one job with one case for every choice, and all flows on their default routes.

    A choice that is not `made` has rows that only a run can make.
    """
    return with_combinations(plan, combinations(plan, [choices]), [made])


def combinations(plan: Plan, choices: Sequence[Sequence[ScheduleChoice]]) -> list[Combination]:
    """What is measured together of every job's choices: the first of each, the second of each, and so on.

    A job with one choice has it in every case. A case has the schedules' label where all jobs have the same, else all
    labels, as in "1f1b + zb-h1". Raises BadInput for lists of different lengths.
    """
    cases = max(map(len, choices))
    for job, mine in zip(plan.jobs, choices, strict=True):
        if len(mine) not in (1, cases):
            labels = ", ".join(choice.label for choice in mine)
            expected = f"1 or {cases} schedules, which meet those of the other jobs one by one"
            raise BadInput.of(job.workload.name, "schedules", labels, expected)
    found = []
    for number in range(cases):
        together = tuple(mine[number if len(mine) > 1 else 0] for mine in choices)
        found.append(Combination(" + ".join(dict.fromkeys(choice.label for choice in together)), together))
    return found


def with_combinations(plan: Plan, combined: Sequence[Combination], made: Sequence[Mapping[str, Generated]]) -> Plan:
    """The plan with these cases, all flows on their default routes; per job, what is `made` of its choices."""
    chosen = [
        tuple(
            job_schedule(job, choice, mine.get(choice.label))
            for job, choice, mine in zip(plan.jobs, combination.choices, made, strict=True)
        )
        for combination in combined
    ]
    flows = tuple(
        flow
        for number, job in enumerate(plan.jobs)
        for flow in flows_of(job, [schedules[number].stage_to_rank for schedules in chosen])
    )
    nodes, default_route = routes.nodes_of_ranks(plan), planned(plan.network).default_route
    taken = tuple(default_route(nodes[flow.source], nodes[flow.target]) for flow in flows)
    cases = tuple(
        Case(combination.label, schedules, taken) for combination, schedules in zip(combined, chosen, strict=True)
    )
    return replace(plan, flows=flows, cases=cases)


def job_schedule(job: Job, choice: ScheduleChoice, made: Generated | None) -> JobSchedule:
    """What a job does in a case: what was made, or None where only a run can make it."""
    rows, proof, remarks = (made.schedule.rows, made.proof, made.remarks) if made else (None, None, ())
    return JobSchedule(choice, costs.stages_of(job, choice), rows, proof, remarks)


LEAST_DISTANCE_S = 200e-6
"""Between two datagrams of background traffic that is to be sent for real."""


def require_trainable(plan: Plan) -> None:
    """Raises BadInput for a plan that can be predicted and scheduled, but not trained yet."""
    for job in plan.jobs[1:]:
        if plan.rounds == "together":
            _require_trainable_beside(plan.jobs[0], job)
    for job in plan.jobs:
        model = job.workload.model
        if missing := missing_methods(model, tensor_ranks=job.mesh.tp > 1):
            expected = f"a class that also has {', '.join(missing)} (testbed/train/model_protocol.py)"
            raise BadInput.of(job.workload.name, "model.kind", model.kind, expected)
    for number in range(len(plan.jobs)):
        _require_all_layers(plan, number)
    require_room_for_parameters(plan)
    check_background(plan, planned(plan.network), plan.network.name)
    for flow in plan.background:
        if every_s(most_bps(flow)) < LEAST_DISTANCE_S:
            expected = f"at most {8 * DATAGRAM_BYTES / LEAST_DISTANCE_S:g} bit/s: a process sends it, packet by packet"
            raise BadInput.of(plan.network.name, "background", f"{most_bps(flow):g} bit/s", expected)
    if plan.clock.name == "virtual" and not all(job.workload.pacing for job in plan.jobs):
        job = next(job for job in plan.jobs if not job.workload.pacing)
        expected = "times for F, I and W: computation takes no virtual time"
        raise BadInput.of(job.workload.name, "pacing", "none", expected)


def _require_all_layers(plan: Plan, number: int) -> None:
    """Raises BadInput for a job whose model leaves layers out, or has some twice, as its schedules cut it."""
    job = plan.jobs[number]
    model = job.workload.model
    for n_stages in sorted({len(case.jobs[number].stage_to_rank) for case in plan.cases} or {job.mesh.pp}):
        layers = [model.stage_layers(stage, n_stages) for stage in range(n_stages)]
        if [layer for stage in layers for layer in stage] != list(model.stage_layers(0, 1)):
            expected = f"all layers of {model.stage_layers(0, 1)} in {n_stages} stages, each once and in order"
            raise BadInput.of(job.workload.name, "model.stage_layers", layers, expected)


def _require_trainable_beside(first: Job, job: Job) -> None:
    """Raises BadInput for a job that cannot be trained round by round with the first one: each has to be in all."""
    for field, option in (("iterations", "--iterations N"), ("warmup", "--set warmup=N")):
        value, others = getattr(job.workload, field), getattr(first.workload, field)
        if value != others:
            expected = (
                f"{others}, as {first.name}: each round is an iteration of all jobs ({option} is for all), but with "
                "--rounds free"
            )
            raise BadInput.of(job.name, field, value, expected)
    for trained in (first, job):
        if trained.workload.pacing is None:
            expected = "seconds for F, I and W: an unpaced job is profiled and trained alone"
            raise BadInput.of(trained.name, "pacing", "none", expected)


def require_room_for_parameters(plan: Plan) -> None:
    """Raises BadInput where the parameters said to be exchanged are fewer than a job's model really has."""
    for job in plan.jobs:
        _require_room_of(plan, job)


def _require_room_of(plan: Plan, job: Job) -> None:
    given, degrees = job.workload.data_parallel.parameters, job.workload.parallelism
    if given is None or degrees.data == 1:
        return
    for case in plan.cases:
        stages = len(case.jobs[plan.jobs.index(job)].stage_to_rank)
        least = job.workload.largest_stage_bytes(stages) * stages / degrees.pipeline
        if given < least:
            expected = f"at least {show_size(least)}, which the model's largest stage has with {case.label}"
            raise BadInput.of(job.workload.name, "data_parallel.parameters", show_size(given), expected)


def with_clock(plan: Plan, clock: Clock) -> Plan:
    """The same plan on another clock, with what the engine costs there."""
    if clock.name == plan.clock.name:
        return replace(plan, clock=clock)
    return with_costs_of_this_version(replace(plan, clock=clock))


def with_costs_of_this_version(plan: Plan) -> Plan:
    """The same plan with what the engine costs on its clock today, whichever version wrote it."""
    there = replace(plan, host_costs=measured_costs(plan.clock.name))
    return _one_after_the_other(there) if plan == _one_after_the_other(plan) else there


def with_shaper(plan: Plan, shaper: str) -> Plan:
    """The same plan as a shaper plays what happens to its links; `auto` takes the relay for that."""
    happens = [event for event in plan.events if isinstance(event, LinkEvent)]
    if shaper == NETEM and cuts_off(plan.recovery):
        raise BadInput.of("--shaper", "shaper", shaper, "relay beside --failure with a datacenter that is cut off")
    if shaper != NETEM or not happens:
        return replace(plan, changes_for="unsent")
    return replace(plan, changes_for="comers")


def with_enforcement(plan: Plan, enforcement: Literal["rules", "ports"] | None) -> Plan:
    """The same plan whose flows are kept to their routes so; None leaves it as it is. Raises BadInput."""
    if enforcement is None:
        return plan
    for job in plan.jobs:
        sums = job.workload.data_parallel
        if enforcement == "ports" and job.workload.parallelism.data > 1 and sums.collective.by_gloo:
            expected = "another one with --enforce ports: gloo's own all-reduce makes connections with ports of its own"
            raise BadInput.of(job.workload.name, "data_parallel.algorithm", sums.algorithm, expected)
        if enforcement == "ports" and job.workload.streams > 1:
            expected = "1 with --enforce ports: a node has one pair of ports for all of its connections there"
            raise BadInput.of(job.workload.name, "streams", job.workload.streams, expected)
    return replace(plan, enforcement=enforcement)
