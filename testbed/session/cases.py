"""The cases of a plan measured one after the other by workers that are connected: on whatever network they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from testbed import __version__
from testbed.errors import RunFailed
from testbed.plan.connecting import neighbours_of
from testbed.plan.costs import problem_of_case, schedule_of
from testbed.plan.events import at_work, trainings
from testbed.plan.plan import Case, Job, Plan
from testbed.planning import file
from testbed.progress import Reporter
from testbed.results.control_times import CONTROL, ControlTimes
from testbed.results.control_times import as_document as controls_document
from testbed.results.directory import ResultsWriter
from testbed.schedule.registry import Generated, generate_choice
from testbed.session import event_report, message_costs
from testbed.session.active_routes import Handled, require_same_choice
from testbed.session.case import train
from testbed.session.goodput_report import goodput_entry
from testbed.session.judgement import JudgedCase, conclude, judge_cases
from testbed.session.message_costs import MessageCosts
from testbed.session.profile import profile
from testbed.session.repeated_training import RepeatedTraining
from testbed.session.running import Running
from testbed.session.trained import TrainedCase
from testbed.thresholds import TRAIN_AGAIN
from testbed.train.assignment import ReferenceOutcome


class ActiveRoutes(Protocol):
    """What has flows take their routes while cases are trained."""

    handled: dict[str, Handled]
    """By the label of a case that goes on from another, the event between them."""

    def begin(self, plan: Plan, case: Case) -> None:
        """The routes of a case on the whole network. Raises RunFailed."""

    def change(self, plan: Plan, before: Case, case: Case) -> None:
        """What an event changes between two cases. Raises RunFailed."""


@dataclass(frozen=True)
class StartedSession:
    """A session whose workers are connected."""

    running: Running
    routes: ActiveRoutes
    identity: Mapping[str, Any]
    """What comparison.json says of the run."""
    manifest: dict[str, Any]
    """As it is written so far; cases add their deadlines to it."""
    control: Callable[[Plan, TrainedCase], list[ControlTimes]] | None = None
    """What trains a case that is a training by itself once more, without shaping."""
    again: int = TRAIN_AGAIN
    """How often at most a case is trained again where the machine was busy otherwise."""
    reconnect: Callable[[], None] | None = None
    """Has all workers connect to each other anew; None where they cannot."""
    strict: bool = False
    """Whether the run ends with a schedule for which a node has too little memory."""


def train_cases(plan: Plan, session: StartedSession, references: Sequence[ReferenceOutcome]) -> dict[str, Any]:
    """Train every case, and judge it; returns the comparison document. Raises RunFailed."""
    running, routes, manifest = session.running, session.routes, session.manifest
    results, reporter = running.results, running.reporter
    profiled = None
    if any(job.workload.pacing is None for job in plan.jobs):
        profiled = profile(plan, running.loop, reporter, running.witness)
        results.save_json("profile.json", profiled.document)
        plan, running = profiled.plan, replace(running, ranges={})  # other times, other ranges
    results.references = references
    repeated = RepeatedTraining(running, profiled.rows if profiled else (), session.again)
    costs: dict[tuple[int, ...], Sequence[MessageCosts] | None] = {}
    judged: list[JudgedCase] = []
    reports: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    goodput: list[dict[str, Any]] = []
    controls: list[ControlTimes] = []
    comparison: dict[str, Any] = {}
    gave_up: dict[str, str] = {}
    done: Sequence[TrainedCase] = ()
    for begins, *goes_on in trainings(plan.cases):
        made = _made_of(plan, (begins, *goes_on), reporter)
        cases = [_with_rows(*pair) for pair in zip((begins, *goes_on), made, strict=True)]
        if profiled is not None:
            plan = _kept_with(plan, cases, results)
        for pair in pairwise(cases):
            require_same_choice(plan, *pair)
        _begin(session, plan, cases[0], done)
        results.save_new()  # what comes now may be put aside
        try:
            known_costs = _known_costs(plan, cases[0], running, costs)
            once = partial(train, running, plan, cases, made, known_costs, routes.change)
            plan, done = repeated.trained(once, partial(_begin, session, plan, cases[0]))
        except RunFailed as error:
            gave_up[begins.label] = _went_beyond_its_limits(session, begins.label, error)
            continue
        if running.adaptation is not None:
            file.write(plan, results.directory / file.NAME)
        for ended in done:
            manifest["deadlines"] |= {ended.case.label: asdict(ended.deadline)}
        if session.control is not None and len(done) == 1:
            controls += session.control(plan, done[0])
            results.save_json(CONTROL, controls_document(controls))
        reports += [event_report.report_of(plan, *pair, routes.handled[pair[1].case.label]) for pair in pairwise(done)]
        results.save_json("manifest.json", manifest)
        judged += judge_cases(plan, done, profiled.rows if profiled else (), results)
        changes += [entry for ended in done for entry in event_report.links_report(plan, ended)]
        goodput += [goodput_entry(plan, ended) for ended in done if plan.recovery is not None]
        of_events = {"events": reports} | ({"link_events": changes} if changes else {})
        of_events |= {"goodput": goodput} if goodput else {}
        adaptation = {} if running.adaptation is None else {"adaptation": running.adaptation.document}
        comparison = conclude(plan, judged, {**session.identity, **of_events, **adaptation}, results)
    if not judged:
        raise RunFailed(
            "; ".join(f"{label} ended: {why}" for label, why in gave_up.items()) or "no schedule was trained"
        )
    if gave_up:
        comparison["ended"] = gave_up
        results.save_json("comparison.json", comparison)
    return comparison


def _begin(session: StartedSession, plan: Plan, case: Case, before: Sequence[TrainedCase]) -> None:
    """Have a training begin with this case, on its own routes, after one that left this behind: with the workers of all
    replicas, over connections whose windows no loss has made smaller. Raises RunFailed."""
    if before and plan.recovery is not None and plan.recovery.elastic is not None:
        assert session.running.workers is not None  # where they cannot be replaced, such a plan is refused
        session.running.workers.regroup(plan.jobs[0].mesh.ranks, neighbours_of(plan, plan.jobs[0]))
    elif session.reconnect is not None and any(ended.network.drops for ended in before):
        session.reconnect()
    session.routes.begin(plan, case)


def _kept_with(plan: Plan, cases: Sequence[Case], results: ResultsWriter) -> Plan:
    """The plan with what only the run could tell of these cases, as it is kept: its predictions can be repeated."""
    known = {case.label: case for case in cases}
    plan = replace(plan, cases=tuple(known.get(case.label, case) for case in plan.cases))
    file.write(plan, results.directory / file.NAME)
    return plan


def _known_costs(
    plan: Plan, case: Case, running: Running, costs: dict[tuple[int, ...], Sequence[MessageCosts] | None]
) -> dict[int, MessageCosts] | None:
    """What this machine adds to the messages of every job; kept in `costs` for the cases to come. Raises RunFailed."""
    whole = replace(plan, events=())  # what jobs that come and go meet is measured with all of them at work
    working = at_work(whole, case)
    costs[working] = found = _message_costs(whole, case, running, costs.get(working))
    _save_costs(plan, running.results, costs)
    return None if found is None else dict(zip(working, found, strict=True))


def _went_beyond_its_limits(session: StartedSession, label: str, error: RunFailed) -> str:
    """Why a schedule has ended, and the others need not: a node had no memory left, and new workers are there.

    Raises the error where it is another one, and whatever it is where the session is strict.
    """
    running = session.running
    why = None if running.workers is None or session.strict else running.workers.out_of_memory()
    if why is None:
        raise error
    assert running.workers is not None
    running.reporter.say(f"{label} ended: {why}")
    with running.reporter.step("starting workers"):
        running.workers.replace()
    return why


def identity_of(
    plan: Plan, machine: Mapping[str, Any], *, shaper: str, transport: str, warned: Sequence[str]
) -> dict[str, Any]:
    """What manifest and comparison say of a run: what `machine` it ran on, and what carried its messages."""
    name = " + ".join(job.name for job in plan.jobs)
    seeds = [job.workload.seed for job in plan.jobs]
    iterations = max(job.workload.iterations for job in plan.jobs)
    return {
        "name": f"{name} on {plan.network.name}",
        "topology": plan.network.name,
        "workload": name,
        **machine,
        "iterations": iterations,
        **({"workload_seed": seeds[0]} if len(plan.jobs) == 1 else {"jobs": [_identity_of(job) for job in plan.jobs]}),
        "version": __version__,
        "shaper": shaper,
        "transport": transport,
        "warnings": warned,
    }


def _identity_of(job: Job) -> dict[str, Any]:
    ranks = {"first_rank": job.mesh.first_rank, "ranks": job.mesh.size}
    return {"name": job.name, **ranks, "workload_seed": job.workload.seed}


def asked_of(plan: Plan) -> dict[str, Any]:
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
