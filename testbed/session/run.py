"""A plan measured once: lab, link gate, workers, every case in turn, comparison. The plan is the only input."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from testbed.errors import RunFailed
from testbed.lab import gate
from testbed.lab.background_senders import BackgroundSenders
from testbed.lab.calibrate import lines
from testbed.lab.host_settings import HostPriority
from testbed.lab.lab import Lab
from testbed.lab.machine_witness import MachineWitness
from testbed.plan.events import links_change
from testbed.plan.plan import Plan
from testbed.plan.routes import routes_of_nodes
from testbed.planning import file, left_out
from testbed.planning.prediction import RangesByLabel, ranges_of_plan
from testbed.planning.resolve import require_trainable, with_clock, with_shaper
from testbed.progress import Reporter
from testbed.results.directory import ResultsWriter
from testbed.results.provenance import environment
from testbed.session import control, deadlines
from testbed.session.active_routes import RoutesInForce
from testbed.session.adapting_lab import AdaptingLab
from testbed.session.cases import StartedSession, asked_of, identity_of, train_cases
from testbed.session.loop import Loop
from testbed.session.network_accounts import LabAccounts
from testbed.session.pinning import Pinning, keep_on, pinning
from testbed.session.recovering_rounds import LabWorkers
from testbed.session.references import References
from testbed.session.running import Running
from testbed.session.standing_lab import StandingLab
from testbed.session.world import worlds_of
from testbed.thresholds import TRAIN_AGAIN
from testbed.trace.tables import FORMAT
from testbed.units import show_time


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
    """Whether links that are not as asked end the run, instead of leaving it untrusted, and a schedule for which a node
    has too little memory, instead of being left out."""
    kept_references: Path | None = None
    """A directory for the trainings in one process, where several plans are measured one after another."""
    control: bool = False
    """Whether every case that is a training by itself is trained once more with links that are not shaped."""
    again: int = TRAIN_AGAIN
    """How often at most a case is trained again where the machine was busy otherwise."""
    shown: tuple[str, ...] = ()
    """Directories that a job's code may read, wherever they lie: of a standing lab, those that it was begun with."""
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
    background: BackgroundSenders | None


def run(plan: Plan, options: SessionOptions, reporter: Reporter) -> dict[str, Any]:
    """Measure a plan; returns the comparison document. Call inside a sandbox.

    Raises MachineLacks or RunFailed; what was measured until then is in the results directory. BadInput for a plan that
    can be predicted only.
    """
    # what a guest was handed may not say so: the clock is the machine's
    plan = with_clock(plan, replace(plan.clock, name=options.machine.get("clock", plan.clock.name)))
    require_trainable(plan)
    plan = with_shaper(plan, options.shaper)
    results = ResultsWriter(options.directory, [job.name for job in plan.jobs])
    results.begin()
    file.write(plan, options.directory / file.NAME)
    plan = file.read(options.directory)  # the very one that the verdict reads: what was predicted of it is known then
    ranges = ranges_of_plan(plan)
    warned = left_out.warnings(plan, ranges)
    for line in warned:
        reporter.say(f"warning: {line}")
    with ExitStack() as stack:
        standing = StandingLab(stack, options.shown) if options.standing is None else options.standing
        # the slow import of torch runs while the lab is built
        standing.launch(plan)
        references = References(plan, standing.launchers, options.kept_references)
        lab = standing.build(reporter, shaper=options.shaper, host_priority=options.host_priority)
        if links_change(plan):
            lab.changes_happened()  # which refuses a shaper that cannot change links, before anything is measured
        stack.callback(results.save_tables)
        with reporter.step("training the reference in one process"):
            outcomes = references.outcomes()  # over before anything is measured
        virtual = plan.clock.name == "virtual"
        links = _measure_links(lab, results, reporter, strict=options.strict, virtual=virtual)
        with Loop(standing.launchers, lab.processes()) as loop:
            transport, shaper = lab.transport_name, lab.shaper_name
            identity = identity_of(plan, options.machine, shaper=shaper, transport=transport, warned=warned)
            beside = stack.enter_context(BackgroundSenders(lab, plan)) if plan.background else None
            live = _Live(options, results, reporter, lab, standing, loop, identity, ranges, beside)
            try:
                return train_cases(plan, _start(plan, live, _pinned(plan, live), links), outcomes)
            except RunFailed as error:
                if (why := standing.out_of_memory()) is not None:
                    raise RunFailed(f"{why}: {error}") from error
                raise


def _measure_links(lab: Lab, results: ResultsWriter, reporter: Reporter, *, strict: bool, virtual: bool) -> gate.Gate:
    """The link gate. Raises RunFailed for links that carry nothing, and if `strict` for any that is not as asked."""
    with reporter.step("measuring links", total=len(lines(lab))) as step:
        links = gate.measure(lab, progress=step.advance, say=reporter.say)
    results.save_json("links.json", links.as_json())
    gate.refuse(lab, links, strict=strict)
    gate.warn(links, reporter.say, virtual=virtual)
    return links


def _warn_of_restarts(plan: Plan, took_s: float, reporter: Reporter) -> None:
    """Say so where all workers took longer to connect than the slot of a restart, in which some or all do it again."""
    if plan.recovery is not None and plan.recovery.failures and took_s > plan.recovery.restart_s:
        took, slot = show_time(took_s), show_time(plan.recovery.restart_s)
        reporter.say(f"warning: workers took {took} to connect: restart={slot} may be too short")
        reporter.note("goodput would be off then, and the run untrusted")


def _start(plan: Plan, live: _Live, pinned: Pinning, links: gate.Gate) -> StartedSession:
    """Have the workers of every job connect, and write the manifest. Raises RunFailed."""
    reporter, lab, witness = live.reporter, live.lab, live.options.witness
    accounts = LabAccounts(lab, live.background)  # from before workers connect
    logs = live.options.directory / "logs"
    worlds = worlds_of(plan, lab, live.standing.scratch, logs, pinned, witness=witness.active)
    connecting = deadlines.of_connecting(plan)
    if plan.enforcement == "ports":
        with reporter.step("choosing ports"):
            lab.routes.choose_ports(routes_of_nodes(plan, plan.cases[0]))
    with reporter.step("starting workers"):
        reporter.note(f"all have to connect within {connecting}")
        look = partial(lab.alive.require, "torch was imported")
        imported_s = [launcher.imported(look) for launcher in live.standing.launchers]
        began_s = time.monotonic()
        live.standing.connect(live.loop, worlds, connecting)
        _warn_of_restarts(plan, time.monotonic() - began_s, reporter)
    routes = RoutesInForce(lab, reporter)
    manifest = {
        **live.identity,
        "format": FORMAT,
        **environment(),
        **asked_of(plan),
        "torch_import_s": round(max(imported_s), 3),
        "lab": lab.describe(),
        "confinement": live.standing.confinement.described(),
        "pinning": pinned._asdict(),
        "links": links.summary(),
        "deadlines": {"connect": asdict(connecting)},
        "enforced": routes.enforced,
    }
    live.results.save_json("manifest.json", manifest)
    witness.watch(lab.carriers())
    real_time = all(world.real_time for world in worlds)
    adaptation = None if plan.adaptation is None else AdaptingLab(plan, lab)
    # with chosen ports no worker can be replaced: connections of the one before it keep its listener's port
    replaced = None if plan.enforcement == "ports" else LabWorkers(live.standing, live.loop, worlds[0], connecting)
    shared = live.ranges, lab, live.background, adaptation, replaced
    running = Running(accounts, live.loop, live.results, reporter, real_time, witness, *shared)
    without_shaping = partial(control.measure, running, lab) if live.options.control else None
    reconnect = None if plan.enforcement == "ports" else partial(live.standing.reconnect, live.loop, worlds, connecting)
    again = live.options.again if plan.clock.name == "real" else 0  # nobody else is at work in a guest
    how = without_shaping, again, reconnect, live.options.strict
    return StartedSession(running, routes, live.identity, manifest, *how)


def _pinned(plan: Plan, live: _Live) -> Pinning:
    """Which processor cores ranks keep to, and what carries the links from now on. Says what is wrong with that."""
    pinned = pinning(plan)
    for reason in pinned.reasons:
        live.reporter.say(f"the run will not be trusted: {reason}")
    if pinned.relay_core is not None:
        for pid in live.lab.carriers():
            keep_on(pid, pinned.relay_core)
    return pinned
