"""One run: a plan measured once. Lab, link gate, training under each schedule, collection, comparison, results."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from testbed import __version__
from testbed.collect import compare, fidelity, record
from testbed.collect.results import Results, environment
from testbed.errors import RunFailed
from testbed.lab import host
from testbed.lab.calibrate import LinkCheck, calibrate, refuse_bad_links
from testbed.lab.counters import LOSS_SIGNS
from testbed.lab.host import HostPriority
from testbed.lab.network import Lab
from testbed.pipeline.ir import Schedule
from testbed.pipeline.memory import peak_in_flight
from testbed.plan import Plan
from testbed.progress import Reporter
from testbed.schedule.registry import Generated
from testbed.schedule.schedule_file import as_document
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import Pacing
from testbed.timeline import KINDS, Timeline, concatenate
from testbed.train.job import IterationRecord, Job
from testbed.train.launcher import Launcher
from testbed.train.protocol import Place, WorldSpec

CONNECT_DEADLINE_S = 120.0
SLOWEST_FACTOR = 20.0
"""An iteration may take this many times its predicted time before the run is given up ..."""
DEADLINE_FLOOR_S = 60.0
"""... and at least this long."""

PROFILE_SCHEDULE = "zb-h1"
"""Splits the backward, so an unpaced run of it tells F, I and W apart."""

RETRANSMITS = "TcpRetransSegs"


@dataclass(frozen=True)
class RunOptions:
    """What the command line decides beside the plan."""

    choices: Sequence[ScheduleChoice]
    shaper: str
    directory: Path
    machine: Mapping[str, Any]
    """What the results say of the machine and its clock."""
    made: Mapping[str, Generated] = field(default_factory=dict)
    """Schedules that are known before the run, by label; the others need what the run measures."""
    host_priority: HostPriority = HostPriority.on


MACHINE_VARIABLE = "TESTBED_MACHINE"
"""Environment of a guest: what it is, as JSON (testbed.vm)."""


def this_machine() -> dict[str, Any]:
    """What the results say of this machine: a real clock, unless whoever booted it says otherwise."""
    said: dict[str, Any] = json.loads(os.environ.get(MACHINE_VARIABLE, "{}"))
    return {"clock": "real"} | said


@dataclass
class _Trained:
    """What one schedule's training left behind."""

    choice: ScheduleChoice
    generated: Generated
    predicted: Timeline
    measured: list[Timeline]
    rows: list[record.IterationRow]
    reasons: list[str]

    @property
    def schedule(self) -> Schedule:
        return self.generated.schedule

    @property
    def losses(self) -> list[float]:
        return [row.loss for row in self.rows]


def run(plan: Plan, options: RunOptions, reporter: Reporter) -> dict[str, Any]:
    """Measure a plan; returns the comparison document. Call inside a sandbox.

    Raises MachineLacks or RunFailed; what was measured until then is in the results directory.
    """
    results = Results(options.directory)
    identity = {
        "name": f"{plan.workload.name} on {plan.topology.name}",
        "topology": plan.topology.name,
        "workload": plan.workload.name,
        **options.machine,
        "iterations": plan.workload.iterations,
        "seed": plan.workload.seed,
        "version": __version__,
    }
    trained: list[_Trained] = []
    # the slow import of torch runs while the lab is built
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch, Launcher(plan.n_ranks) as launcher:
        with reporter.step(f"building {plan.topology.name}") as step:
            lab = Lab(
                plan.topology,
                shaper=options.shaper,
                transport=plan.workload.transport,
                largest_burst_bytes=plan.largest_burst_bytes(options.choices),
                progress=step.detail,
                seed=plan.workload.seed,
                host_priority=options.host_priority,
            )
            lab.__enter__()
        try:
            identity |= {"shaper": lab.shaper_name, "transport": lab.transport_name}
            checks = _check_links(lab, reporter)
            results.save_json("links.json", {"links": [check.as_json() for check in checks]})
            refuse_bad_links(lab, checks)
            with reporter.step("starting workers"):
                imported_s = launcher.start(
                    _world(plan, options.choices, lab, scratch, options.directory), CONNECT_DEADLINE_S
                )
            _save_manifest(results, plan, options, lab, identity, imported_s)
            pacing = None if plan.workload.pacing else _profile(plan, launcher, reporter)
            for choice in options.choices:
                made = options.made.get(choice.label)
                if made is None:
                    with reporter.solving() as watch:
                        made = plan.generate(choice, pacing, watch)
                trained.append(_train(plan, choice, made, pacing, launcher, lab, results, reporter))
            document = _conclude(trained, identity, results)
        finally:
            results.save_tables()
            lab.__exit__(None, None, None)
    return document


def _check_links(lab: Lab, reporter: Reporter) -> list[LinkCheck]:
    with reporter.step("measuring links", total=len(lab.directions) // 2) as step:
        return calibrate(lab, progress=step.advance)


def _world(plan: Plan, choices: Sequence[ScheduleChoice], lab: Lab, scratch: str, directory: Path) -> WorldSpec:
    return WorldSpec(
        places=tuple(Place(lab.containers[node].pid, lab.interface(node)) for node in plan.nodes),
        store=f"{scratch}/store",
        timeout_s=_deadline(plan, DEADLINE_FLOOR_S),
        warmup_bytes=plan.workload.message_bytes(),
        neighbours=_neighbours(plan, choices),
        # unpaced ranks compute without a pause: in turns of 100 ms they would keep each other's gloo threads waiting
        real_time=lab.real_time_workers and plan.workload.pacing is not None,
        logs=str((directory / "logs").absolute()),
    )


def _neighbours(plan: Plan, choices: Sequence[ScheduleChoice]) -> tuple[tuple[int, int], ...]:
    """Pairs of ranks that exchange messages under any of the schedules."""
    placements = {plan.stages(choice) for choice in choices}
    pairs = {(min(a, b), max(a, b)) for stages in placements for a, b in pairwise(stages) if a != b}
    return tuple(sorted(pairs | {(rank, rank + 1) for rank in range(plan.n_ranks - 1)}))


def _deadline(plan: Plan, floor_s: float) -> float:
    """A wait within an iteration that lasts longer than this will not end: derived from the work and the links."""
    pacing = plan.workload.pacing
    work_s = sum(pacing.of(kind, rank) for kind in ("F", "I", "W") for rank in range(plan.n_ranks)) if pacing else 1.0
    wire_s = sum(2 * d.delay_s + 8 * plan.workload.message_bytes() / d.rate_bps for d in plan.topology.directions())
    return max(floor_s, SLOWEST_FACTOR * plan.workload.microbatches * (work_s + wire_s))


def _save_manifest(
    results: Results, plan: Plan, options: RunOptions, lab: Lab, identity: dict[str, Any], imported_s: float
) -> None:
    document = {
        **identity,
        **environment(),
        "topology_spec": plan.topology.model_dump(mode="json"),
        "workload_spec": plan.workload.model_dump(mode="json"),
        "nodes": list(plan.nodes),
        "schedules": [choice.as_identity() for choice in options.choices],
        "solver": {name: made.proof._asdict() for name, made in options.made.items() if made.proof},
        "torch_import_s": round(imported_s, 3),
        "lab": lab.describe(),
    }
    results.save_json("manifest.json", document)


def _profile(plan: Plan, launcher: Launcher, reporter: Reporter) -> Pacing:
    """Without pacing, what F, I and W take on this machine: medians per rank of an unpaced run."""
    choice = ScheduleChoice(schedule=PROFILE_SCHEDULE)
    guess = Pacing(F="1 ms", I="1 ms", W="1 ms")  # only the order of actions matters here
    job = Job(plan.schedule(choice, guess), plan.workload, None, plan.workload.warmup + 3)
    with reporter.step("profiling the unpaced computation", total=job.iterations) as step:
        timelines = []
        for records in launcher.run(job, _deadline(plan, DEADLINE_FLOOR_S)):
            timelines.append(record.timeline(records))
            step.advance()
    actions = concatenate(timelines[plan.workload.warmup :]).actions

    def median(kind: str, rank: int) -> str:
        code = [str(k) for k in KINDS].index(kind)
        rows = actions[(actions["rank"] == rank) & (actions["kind"] == code)]
        return f"{statistics.median(rows['end_s'] - rows['start_s']):.9f} s"

    return Pacing(**{kind: [median(kind, rank) for rank in range(plan.n_ranks)] for kind in ("F", "I", "W")})


def _train(
    plan: Plan,
    choice: ScheduleChoice,
    made: Generated,
    pacing: Pacing | None,
    launcher: Launcher,
    lab: Lab,
    results: Results,
    reporter: Reporter,
) -> _Trained:
    """Train with one schedule and collect what happened."""
    workload = plan.workload
    schedule = made.schedule
    predicted = plan.predict(choice, schedule, pacing)
    results.add_timeline(choice.label, "predicted", predicted)
    problem = plan.problem(choice, pacing)
    durations = None
    if workload.pacing:
        durations = tuple(tuple(problem.duration(action) for action in row) for row in schedule.rows)
    job = Job(schedule, workload, durations, workload.warmup + workload.iterations)
    links_before, tcp_before = lab.counters(reset_peaks=True), _loss_signs(lab)
    trained = _Trained(choice, made, predicted, [], [], [])
    real_time = launcher.world is not None and launcher.world.real_time
    with reporter.step(f"training {choice.label}", total=job.iterations) as step, host.real_time(real_time):
        try:
            for records in launcher.run(job, _deadline(plan, DEADLINE_FLOOR_S)):
                _note_iteration(trained, records, workload.warmup)
                step.advance(f"training {choice.label}: {trained.rows[-1].makespan_s * 1e3:.1f} ms")
        finally:
            if trained.measured:
                results.add_timeline(choice.label, "measured", concatenate(trained.measured))
                results.add_iterations(choice.label, trained.rows)
    links = [after.since(before) for after, before in zip(lab.counters(), links_before, strict=True)]
    results.add_links(choice.label, [row.as_row() for row in links])
    tcp = {name: count - tcp_before.get(name, 0) for name, count in _loss_signs(lab).items()}
    lossless = workload.transport == "otn-lossless" and not any(d.loss for d in lab.directions)
    evidence = fidelity.NetworkEvidence(
        drops=sum(row.dropped for row in links),
        retransmits=tcp.get(RETRANSMITS, 0),
        other={name: count for name, count in tcp.items() if count and name != RETRANSMITS},
        lossless=lossless,
    )
    measured = [row for row in trained.rows if not row.warmup]
    trained.reasons += fidelity.run_reasons(measured, evidence, paced=workload.pacing is not None)
    return trained


def _note_iteration(trained: _Trained, records: Sequence[IterationRecord], warmup: int) -> None:
    trained.rows.append(record.iteration_row(records, warmup))
    trained.measured.append(record.timeline(records))


def _loss_signs(lab: Lab) -> dict[str, int]:
    """TCP's signs of loss, over all nodes."""
    total = dict.fromkeys(LOSS_SIGNS, 0)
    for counters in lab.tcp_counters().values():
        for name in LOSS_SIGNS:
            total[name] += counters.get(name, 0)
    return total


def _conclude(trained: list[_Trained], identity: dict[str, Any], results: Results) -> dict[str, Any]:
    """Judge, compare, write comparison.json and schedules.json."""
    if not trained:
        raise RunFailed("no schedule was trained")
    by_loss = fidelity.loss_reasons({one.choice.label: one.losses for one in trained})
    runs = [
        compare.Measured(
            schedule=one.choice.schedule,
            label=one.choice.label,
            rows=[row for row in one.rows if not row.warmup],
            predicted=one.predicted,
            predicted_peak=max(peak_in_flight(one.schedule)),
            reasons=[*one.reasons, *by_loss[one.choice.label]],
            solver=one.generated.proof and one.generated.proof._asdict(),
        )
        for one in trained
    ]
    schedules = compare.compare(runs)
    document = compare.as_document({**identity, "ranking_as_predicted": compare.same_ranking(schedules)}, schedules)
    results.save_json("comparison.json", document)
    results.save_json("schedules.json", as_document({one.choice.label: one.generated for one in trained}))
    return document
