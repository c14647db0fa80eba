"""A plan measured once: lab, link gate, workers, every case in turn, comparison. The plan is the only input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from testbed import __version__
from testbed.errors import RunFailed
from testbed.lab import gate
from testbed.lab.calibrate import lines
from testbed.lab.host_settings import HostPriority
from testbed.lab.lab import Lab
from testbed.lab.machine_witness import MachineWitness
from testbed.plan.costs import problem_of_case, schedule_of
from testbed.plan.events import at_work, trainings
from testbed.plan.plan import Case, Job, Plan
from testbed.plan.routes import routes_of_nodes
from testbed.planning import file, left_out
from testbed.planning.prediction import RangesByLabel, ranges_of_plan
from testbed.planning.resolve import require_trainable, with_clock
from testbed.progress import Reporter
from testbed.results.directory import ResultsWriter
from testbed.results.provenance import environment
from testbed.schedule.registry import Generated, generate_choice
from testbed.session import deadlines, event_report, message_costs
from testbed.session.active_routes import RoutesInForce, require_same_choice
from testbed.session.case import Running, train
from testbed.session.judgement import JudgedCase, conclude, judge_cases
from testbed.session.loop import Loop
from testbed.session.message_costs import MessageCosts
from testbed.session.pinning import Pinning, keep_on, pinning
from testbed.session.profile import profile
from testbed.session.references import References
from testbed.session.standing_lab import StandingLab
from testbed.session.world import worlds_of
from testbed.trace.tables import FORMAT
from testbed.train.assignment import ReferenceOutcome


@dataclass(frozen=True)
class SessionOptions:
    """What is not the plan's to say: how this machine goes about it, and where the results go."""

    directory: Path
    shaper: str
    machine: Mapping[str, Any]
    """What the results say of the machine and its clock."""
    witness: MachineWitness
    """Opened outside the sandbox: inside, the machine's own threads cannot be seen."""
    host_priority: HostPriority = HostPriority.on
    strict: bool = False
    """Whether links that are not as asked end the run, instead of leaving it untrusted."""
    kept_references: Path | None = None
    """A directory for the trainings in one process, where several plans are measured one after another."""
    standing: StandingLab | None = None
    """The same of the lab and the workers, as they were left."""


@dataclass(frozen=True)
class _Live:
    """What a session has, once its lab is built."""

    options: SessionOptions
    results: ResultsWriter
    reporter: Reporter
    lab: Lab
    standing: StandingLab
    loop: Loop
    identity: Mapping[str, Any]
    ranges: RangesByLabel
    """Of the cases whose schedules are known before anything is measured."""


def run(plan: Plan, options: SessionOptions, reporter: Reporter) -> dict[str, Any]:
    """Measure a plan; returns the comparison document. Call inside a sandbox.

    Raises MachineLacks or RunFailed; what was measured until then is in the results directory. BadInput for a plan that
    can be predicted only.
    """
    # what a guest was handed may not say so: the clock is the machine's
    plan = with_clock(plan, replace(plan.clock, name=options.machine.get("clock", plan.clock.name)))
    require_trainable(plan)
    results = ResultsWriter(options.directory, [job.name for job in plan.jobs])
    file.write(plan, options.directory / file.NAME)
    ranges = ranges_of_plan(plan)
    warned = left_out.warnings(plan, ranges)
    for line in warned:
        reporter.say(f"warning: {line}")
    with ExitStack() as stack:
        standing = StandingLab(stack) if options.standing is None else options.standing
        # the slow import of torch runs while the lab is built
        standing.launch(plan)
        references = References(plan, standing.launchers, options.kept_references)
        lab = standing.build(reporter, shaper=options.shaper, host_priority=options.host_priority)
        stack.callback(results.save_tables)
        with reporter.step("training the reference in one process"):
            outcomes = references.outcomes()  # over before anything is measured
        links = _measure_links(lab, results, reporter, strict=options.strict)
        with Loop(standing.launchers, lab.processes()) as loop:
            identity = _identity(plan, options, lab, warned)
            live = _Live(options, results, reporter, lab, standing, loop, identity, ranges)
            return _train_cases(plan, live, outcomes, links)


def _identity(plan: Plan, options: SessionOptions, lab: Lab, warned: Sequence[str]) -> dict[str, Any]:
    name = " + ".join(job.name for job in plan.jobs)
    seeds = [job.workload.seed for job in plan.jobs]
    (iterations,) = {job.workload.iterations for job in plan.jobs}
    return {
        "name": f"{name} on {plan.network.name}",
        "topology": plan.network.name,
        "workload": name,
        **options.machine,
        "iterations": iterations,
        **({"workload_seed": seeds[0]} if len(plan.jobs) == 1 else {"jobs": [_identity_of(job) for job in plan.jobs]}),
        "version": __version__,
        "shaper": lab.shaper_name,
        "transport": lab.transport_name,
        "warnings": warned,
    }


def _identity_of(job: Job) -> dict[str, Any]:
    ranks = {"first_rank": job.mesh.first_rank, "ranks": job.mesh.size}
    return {"name": job.name, **ranks, "workload_seed": job.workload.seed}


def _measure_links(lab: Lab, results: ResultsWriter, reporter: Reporter, *, strict: bool) -> gate.Gate:
    """The link gate. Raises RunFailed for links that carry nothing, and if `strict` for any that is not as asked."""
    with reporter.step("measuring links", total=len(lines(lab))) as step:
        links = gate.measure(lab, progress=step.advance, say=reporter.say)
    results.save_json("links.json", links.as_json())
    gate.refuse(lab, links, strict=strict)
    gate.warn(links, reporter.say)
    return links


class _Started(NamedTuple):
    """A session whose workers are connected."""

    running: Running
    routes: RoutesInForce
    manifest: dict[str, Any]
    """As it is written so far; cases add to it."""


def _start(plan: Plan, live: _Live, pinned: Pinning, links: gate.Gate) -> _Started:
    """Have the workers of every job connect, and write the manifest. Raises RunFailed."""
    reporter, lab, witness = live.reporter, live.lab, live.options.witness
    logs = live.options.directory / "logs"
    worlds = worlds_of(plan, lab, live.standing.scratch, logs, pinned, witness=witness.active)
    connecting = deadlines.of_connecting(plan)
    if plan.enforcement == "ports":
        with reporter.step("choosing ports"):
            lab.choose_ports(routes_of_nodes(plan, plan.cases[0]))
    with reporter.step("starting workers"):
        reporter.note(f"all have to connect within {connecting}")
        imported_s = [launcher.imported() for launcher in live.loop.launchers]
        live.standing.connect(live.loop, worlds, connecting)
    routes = RoutesInForce(lab, reporter)
    manifest = {
        **live.identity,
        "format": FORMAT,
        **environment(),
        **_asked(plan),
        "torch_import_s": round(max(imported_s), 3),
        "lab": lab.describe(),
        "pinning": pinned._asdict(),
        "links": links.summary(),
        "deadlines": {"connect": asdict(connecting)},
        "enforced": routes.enforced,
    }
    live.results.save_json("manifest.json", manifest)
    witness.watch(lab.carriers())
    real_time = all(world.real_time for world in worlds)
    running = Running(lab, live.loop, live.results, reporter, real_time, witness, live.ranges)
    return _Started(running, routes, manifest)


def _pinned(plan: Plan, live: _Live) -> Pinning:
    """Which processor cores ranks keep to, and what carries the links from now on. Says what is wrong with that."""
    pinned = pinning(plan)
    for reason in pinned.reasons:
        live.reporter.say(f"the run will not be trusted: {reason}")
    if pinned.relay_core is not None:
        for pid in live.lab.carriers():
            keep_on(pid, pinned.relay_core)
    return pinned


def _train_cases(plan: Plan, live: _Live, references: Sequence[ReferenceOutcome], links: gate.Gate) -> dict[str, Any]:
    """Start the workers and train every case; returns the comparison document. Raises RunFailed."""
    results, reporter = live.results, live.reporter
    pinned = _pinned(plan, live)
    running, routes, manifest = _start(plan, live, pinned, links)
    profiled = None
    if any(job.workload.pacing is None for job in plan.jobs):
        profiled = profile(plan, live.loop, reporter, running.witness)
        results.save_json("profile.json", profiled.document)
        plan, running = profiled.plan, replace(running, ranges={})  # other times, other ranges
    results.references = references
    costs: dict[tuple[int, ...], Sequence[MessageCosts] | None] = {}
    judged: list[JudgedCase] = []
    reports: list[dict[str, Any]] = []
    comparison: dict[str, Any] = {}
    for begins, *goes_on in trainings(plan.cases):
        made = _made_of(plan, (begins, *goes_on), reporter)
        cases = [_with_rows(*pair) for pair in zip((begins, *goes_on), made, strict=True)]
        if profiled is not None:
            # the plan is kept with what only the run could tell: its predictions can be repeated
            known = {case.label: case for case in cases}
            plan = replace(plan, cases=tuple(known.get(case.label, case) for case in plan.cases))
            file.write(plan, live.options.directory / file.NAME)
        for pair in pairwise(cases):
            require_same_choice(plan, *pair)
        routes.begin(plan, cases[0])
        # what jobs that come and go meet is measured with all of them at work
        whole = replace(plan, events=())
        working = at_work(whole, cases[0])
        costs[working] = found = _message_costs(whole, cases[0], running, costs.get(working))
        _save_costs(plan, results, costs)
        known_costs = None if found is None else dict(zip(working, found, strict=True))
        done = train(running, plan, cases, made, known_costs, partial(routes.change, plan))
        for ended in done:
            manifest["deadlines"] |= {ended.case.label: asdict(ended.deadline)}
        reports += [event_report.report_of(plan, *pair, routes.handled[pair[1].case.label]) for pair in pairwise(done)]
        results.save_json("manifest.json", manifest)
        judged += judge_cases(plan, done, profiled.rows if profiled else (), results)
        comparison = conclude(plan, judged, {**live.identity, "events": reports}, results)
    if not judged:
        raise RunFailed("no schedule was trained")
    return comparison


def _asked(plan: Plan) -> dict[str, Any]:
    """What the manifest says of the jobs: their workloads, the node of every rank, and their choices in every case."""
    return {
        "jobs": [_identity_of(job) for job in plan.jobs],
        "workload_specs": [job.workload.model_dump(mode="json") for job in plan.jobs],
        "nodes": [node for job in plan.jobs for node in job.nodes],
        "schedules": [
            {"label": case.label, "jobs": [chosen.choice.as_identity() for chosen in case.jobs]} for case in plan.cases
        ],
    }


def _message_costs(
    plan: Plan, case: Case, running: Running, earlier: Sequence[MessageCosts] | None
) -> Sequence[MessageCosts] | None:
    """What this machine adds to every message; None where it adds nothing, or where computation takes its own time."""
    if plan.clock.name != "real" or not all(job.workload.pacing for job in plan.jobs):
        return None
    return message_costs.measure(
        plan, case, earlier, running.loop, running.reporter, running.witness, real_time=running.real_time
    )


def _save_costs(
    plan: Plan, results: ResultsWriter, costs: Mapping[tuple[int, ...], Sequence[MessageCosts] | None]
) -> None:
    """What is known so far, by the jobs at work: of all, and beside it of each one alone."""
    documents = {jobs: message_costs.as_document(found) for jobs, found in costs.items() if found is not None}
    whole = documents.pop(tuple(range(len(plan.jobs))), {})
    alone = {plan.jobs[number].name: document for (number,), document in documents.items()}
    if whole or alone:
        results.save_json("message_costs.json", whole | ({"alone": alone} if alone else {}))


def _with_rows(case: Case, made: Sequence[Generated]) -> Case:
    """The case with the schedules that were made for its jobs."""
    chosen = [
        replace(chosen, rows=mine.schedule.rows, proof=mine.proof) for chosen, mine in zip(case.jobs, made, strict=True)
    ]
    return replace(case, jobs=tuple(chosen))


def _made_of(plan: Plan, cases: Sequence[Case], reporter: Reporter) -> list[list[Generated]]:
    """Per case of a training, the schedule of every job: with the same choice as before it goes on as it is."""
    found: list[list[Generated]] = []
    for index, case in enumerate(cases):
        same = [index > 0 and chosen == cases[index - 1].jobs[job] for job, chosen in enumerate(case.jobs)]
        found.append([found[-1][job] if kept else _made(plan, case, job, reporter) for job, kept in enumerate(same)])
    return found


def _made(plan: Plan, case: Case, job: int, reporter: Reporter) -> Generated:
    """The schedule of a job in a case: as the plan has it, or made now that it is known what actions take."""
    chosen, schedule = case.jobs[job], schedule_of(plan, case, job=job)
    if schedule is not None:
        return Generated(schedule, chosen.proof)
    with reporter.solving() as watch:
        return generate_choice(chosen.choice, problem_of_case(plan, case, job=job), watch)
