"""A plan measured once: lab, link gate, workers, every case in turn, comparison. The plan is the only input."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from testbed import __version__
from testbed.errors import RunFailed
from testbed.judge import numerics
from testbed.lab import gate
from testbed.lab.calibrate import lines
from testbed.lab.host import HostPriority
from testbed.lab.network import Lab
from testbed.lab.witness import MachineWitness
from testbed.plan import file, unmodelled
from testbed.plan.costs import largest_burst_bytes, problem_of_case, schedule_of
from testbed.plan.plan import Case, Plan
from testbed.plan.resolve import require_trainable
from testbed.progress import Reporter
from testbed.results.directory import Results
from testbed.results.provenance import environment
from testbed.schedule.registry import Generated, generate_choice
from testbed.session import deadlines, message_costs
from testbed.session.case import Running, Trained, train
from testbed.session.loop import Loop
from testbed.session.message_costs import MessageCosts
from testbed.session.pinning import keep_on, pinning
from testbed.session.profile import profile
from testbed.session.verdict import Before, conclude
from testbed.session.world import world_of
from testbed.trace.tables import FORMAT
from testbed.train.job import Reference
from testbed.train.launcher import Launcher
from testbed.train.protocol import TrainReference


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


@dataclass(frozen=True)
class _Live:
    """What a session has, once its lab is built."""

    options: SessionOptions
    results: Results
    reporter: Reporter
    lab: Lab
    launcher: Launcher
    loop: Loop
    identity: Mapping[str, Any]


def run(plan: Plan, options: SessionOptions, reporter: Reporter) -> dict[str, Any]:
    """Measure a plan; returns the comparison document. Call inside a sandbox.

    Raises MachineLacks or RunFailed; what was measured until then is in the results directory. BadInput for a plan that
    can be predicted only.
    """
    # what a guest was handed may not say so: the clock is the machine's
    plan = replace(plan, clock=replace(plan.clock, name=options.machine.get("clock", plan.clock.name)))
    require_trainable(plan)
    results = Results(options.directory)
    file.write(plan, options.directory / file.NAME)
    for line in unmodelled.warnings(plan):
        reporter.say(f"warning: {line}")
    # the slow import of torch runs while the lab is built
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch, Launcher(plan.jobs[0].mesh.size) as launcher:
        launcher.ask_for_reference(_reference_of(plan))
        with reporter.step(f"building {plan.network.name}") as step:
            lab = Lab(
                plan,
                shaper=options.shaper,
                largest_burst_bytes=largest_burst_bytes(plan),
                progress=step.detail,
                host_priority=options.host_priority,
            )
            lab.__enter__()
        try:
            with reporter.step("training the reference in one process"):
                reference = launcher.reference()  # over before anything is measured
            links = _measure_links(lab, results, reporter, strict=options.strict)
            with Loop([launcher], lab.processes()) as loop:
                live = _Live(options, results, reporter, lab, launcher, loop, _identity(plan, options, lab))
                return _train_cases(plan, live, scratch, reference, links)
        finally:
            results.save_tables()
            lab.__exit__(None, None, None)


def _identity(plan: Plan, options: SessionOptions, lab: Lab) -> dict[str, Any]:
    job = plan.jobs[0]
    return {
        "name": f"{job.name} on {plan.network.name}",
        "topology": plan.network.name,
        "workload": job.name,
        **options.machine,
        "iterations": job.workload.iterations,
        "workload_seed": job.workload.seed,
        "version": __version__,
        "shaper": lab.shaper_name,
        "transport": lab.transport_name,
        "warnings": unmodelled.warnings(plan),
    }


def _reference_of(plan: Plan) -> TrainReference:
    workload = plan.jobs[0].workload
    iterations = numerics.compared(workload)
    return TrainReference(workload, iterations, deadlines.of_reference(workload, iterations).seconds)


def _measure_links(lab: Lab, results: Results, reporter: Reporter, *, strict: bool) -> gate.Gate:
    """The link gate. Raises RunFailed for links that carry nothing, and if `strict` for any that is not as asked."""
    with reporter.step("measuring links", total=len(lines(lab))) as step:
        links = gate.measure(lab, progress=step.advance, say=reporter.say)
    results.save_json("links.json", links.as_json())
    gate.refuse(lab, links, strict=strict)
    gate.warn(links, reporter.say)
    return links


def _train_cases(plan: Plan, live: _Live, scratch: str, reference: Reference, links: gate.Gate) -> dict[str, Any]:
    """Start the workers and train every case; returns the comparison document. Raises RunFailed."""
    results, reporter, witness = live.results, live.reporter, live.options.witness
    pinned = pinning(plan)
    for reason in pinned.reasons:
        reporter.say(f"the run will not be trusted: {reason}")
    if pinned.relay_core is not None:
        for pid in live.lab.carriers():
            keep_on(pid, pinned.relay_core)
    logs = live.options.directory / "logs"
    world = world_of(plan, live.lab, Path(scratch), logs, pinned, witness=witness.active)
    connecting = deadlines.of_connecting(plan)
    with reporter.step("starting workers"):
        reporter.note(f"all have to connect within {connecting}")
        imported_s = live.launcher.imported()
        live.loop.start([world], connecting)
    manifest = {
        **live.identity,
        "format": FORMAT,
        **environment(),
        "workload_spec": plan.jobs[0].workload.model_dump(mode="json"),
        "nodes": list(plan.jobs[0].nodes),
        "schedules": [case.jobs[0].choice.as_identity() for case in plan.cases],
        "torch_import_s": round(imported_s, 3),
        "lab": live.lab.describe(),
        "pinning": pinned._asdict(),
        "links": links.summary(),
        "deadlines": {"connect": asdict(connecting)},
    }
    results.save_json("manifest.json", manifest)
    witness.watch(live.lab.carriers())
    profiled = None
    if plan.jobs[0].workload.pacing is None:
        profiled = profile(plan, live.loop, reporter, witness)
        results.save_json("profile.json", profiled.document)
        plan = profiled.plan
    running = Running(plan, live.lab, live.loop, results, reporter, world.real_time, witness)
    before = Before(reference, links, pinned, profiled)
    costs: MessageCosts | None = None
    trained: list[Trained] = []
    comparison: dict[str, Any] = {}
    for case in plan.cases:
        made = _made(plan, case, reporter)
        if plan.jobs[0].profile is not None:
            # the plan is kept with what only the run could tell: its predictions can be repeated
            plan = _with_rows(plan, case, made)
            file.write(plan, live.options.directory / file.NAME)
        costs = _message_costs(plan, live, made, costs, real_time=world.real_time)
        trained.append(train(running, case, made, costs))
        manifest["deadlines"] |= {case.label: asdict(trained[-1].deadline)}
        results.save_json("manifest.json", manifest)
        comparison = conclude(plan, trained, before, live.identity, results)
    if not trained:
        raise RunFailed("no schedule was trained")
    return comparison


def _message_costs(
    plan: Plan, live: _Live, made: Generated, earlier: MessageCosts | None, *, real_time: bool
) -> MessageCosts | None:
    """What this machine adds to every message; None where it adds nothing, or where computation takes its own time."""
    if plan.clock.name != "real" or plan.jobs[0].workload.pacing is None:
        return None
    found = message_costs.measure(
        plan, made.schedule, earlier, live.loop, live.reporter, live.options.witness, real_time=real_time
    )
    if found is not None:
        live.results.save_json("message_costs.json", found.as_json())
    return found


def _with_rows(plan: Plan, case: Case, made: Generated) -> Plan:
    """The plan in which a case has the schedule that was made for it."""
    chosen = replace(case.jobs[0], rows=made.schedule.rows, proof=made.proof)
    filled = replace(case, jobs=(chosen, *case.jobs[1:]))
    return replace(plan, cases=tuple(filled if one.label == case.label else one for one in plan.cases))


def _made(plan: Plan, case: Case, reporter: Reporter) -> Generated:
    """The schedule of a case: as the plan has it, or made now that it is known what actions take."""
    chosen, schedule = case.jobs[0], schedule_of(plan, case)
    if schedule is not None:
        return Generated(schedule, chosen.proof)
    with reporter.solving() as watch:
        problem = problem_of_case(plan, case)
        return generate_choice(chosen.choice, problem, watch)
