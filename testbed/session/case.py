"""One case of a plan: trained, collected, and judged by what the network's counters say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from testbed.judge import fidelity, iterations
from testbed.lab import host
from testbed.lab.counters import LOSS_SIGNS
from testbed.lab.network import Lab
from testbed.lab.shaping import LinkCounters
from testbed.lab.witness import MachineCounts, MachineWitness
from testbed.model.host import HostPrediction, predict_on_host
from testbed.model.lower import Load
from testbed.pipeline.ir import Schedule
from testbed.plan.costs import predict_case, problem_of_case
from testbed.plan.plan import Case, Plan
from testbed.plan.routes import routes_of_nodes
from testbed.plan.traffic import Planned, planned_traffic
from testbed.progress import Reporter
from testbed.results.directory import Results
from testbed.schedule.registry import Generated
from testbed.session import deadlines
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.session.message_costs import MessageCosts
from testbed.trace.tables import Trace, concatenate
from testbed.train.job import IterationRecord, Job
from testbed.units import show_time

RETRANSMITS = "TcpRetransSegs"


@dataclass(frozen=True)
class Running:
    """What every case of a session needs."""

    plan: Plan
    lab: Lab
    loop: Loop
    results: Results
    reporter: Reporter
    real_time: bool
    """Whether workers run under SCHED_RR."""
    witness: MachineWitness


@dataclass
class Trained:
    """What one case left behind."""

    case: Case
    generated: Generated
    predicted: Trace
    deadline: Deadline
    costs: MessageCosts | None
    """What this machine was measured to add until then; None on the virtual clock and without pacing."""
    on_this_host: HostPrediction | None
    """With these costs; None where there are none."""
    measured: list[Trace] = field(default_factory=list)
    rows: list[iterations.IterationRow] = field(default_factory=list)
    network: fidelity.NetworkEvidence | None = None
    """What was counted meanwhile, as the next; None until the case is over."""
    traffic: Sequence[fidelity.Traffic] = ()

    @property
    def schedule(self) -> Schedule:
        """What was trained with."""
        return self.generated.schedule


def train(running: Running, case: Case, made: Generated, message_costs: MessageCosts | None) -> Trained:
    """Train one case and collect what happened. Raises RunFailed; what was measured until then is in the results."""
    plan, results = running.plan, running.results
    workload = plan.jobs[0].workload
    problem = problem_of_case(plan, case)
    predicted = predict_case(plan, case, made.schedule)
    results.add_trace(case.label, "predicted", predicted)
    durations = None
    if workload.pacing:
        durations = tuple(tuple(problem.duration(action) for action in row) for row in made.schedule.rows)
    job = Job(made.schedule, workload, durations, workload.warmup + workload.iterations, problem.turn_s)
    deadline = deadlines.of_iteration(float(predicted.makespans()[0]))
    on_this_host = None
    if message_costs is not None:
        on_this_host = predict_on_host(Load(problem, made.schedule, 0.0, workload.receives), message_costs.extra)
    trained = Trained(case, made, predicted, deadline, message_costs, on_this_host)
    running.lab.use_routes(routes_of_nodes(plan, case))
    links_before, tcp_before = running.lab.counters(reset_peaks=True), _loss_signs(running.lab)
    _iterate(running, job, trained)
    links = [after.since(before) for after, before in zip(running.lab.counters(), links_before, strict=True)]
    planned = [_times(one, job.iterations) for one in planned_traffic(plan, case)]
    results.add_links(case.label, [link_row(row, one) for row, one in zip(links, planned, strict=True)])
    tcp = {name: count - tcp_before.get(name, 0) for name, count in _loss_signs(running.lab).items()}
    trained.network = _network(plan, links, tcp)
    trained.traffic = [
        fidelity.Traffic(row.label, row.wire_bytes, one.wire_bytes, one.messages)
        for row, one in zip(links, planned, strict=True)
    ]
    return trained


def _iterate(running: Running, job: Job, trained: Trained) -> None:
    label, results, warmup = trained.case.label, running.results, job.workload.warmup
    with running.reporter.step(f"training {label}", total=job.iterations) as step, host.real_time(running.real_time):
        running.reporter.note(f"each iteration has to end within {trained.deadline}")
        if warmup:
            running.reporter.note(f"the first {warmup} of {job.iterations} iterations warm up, and do not count")
        try:
            before = running.witness.read()
            for (records,) in running.loop.run([job], trained.deadline):
                now = running.witness.read()
                _note_iteration(trained, records, warmup, now.since(before))
                before = now
                what = "warming up" if len(trained.rows) <= warmup else "measured"
                step.advance(f"training {label}: {show_time(trained.rows[-1].makespan_s)}, {what}")
        finally:
            if trained.measured:
                results.add_trace(label, "measured", concatenate(trained.measured))
                results.add_iterations(label, trained.rows)


def _note_iteration(trained: Trained, records: Sequence[IterationRecord], warmup: int, machine: MachineCounts) -> None:
    trained.rows.append(iterations.iteration_row(records, warmup, machine))
    trained.measured.append(iterations.trace(records))


def link_row(counted: LinkCounters, planned: Planned) -> dict[str, object]:
    """One direction in links.parquet: what was counted, and what the plan should bring."""
    return counted.as_row() | {"planned_bytes": planned.wire_bytes, "planned_messages": planned.messages}


def _times(one: Planned, count: int) -> Planned:
    return Planned(one.wire_bytes * count, one.messages * count)


def _network(plan: Plan, links: Sequence[LinkCounters], tcp: dict[str, int]) -> fidelity.NetworkEvidence:
    return fidelity.NetworkEvidence(
        drops=sum(row.dropped for row in links),
        retransmits=tcp.get(RETRANSMITS, 0),
        other={name: count for name, count in tcp.items() if count and name != RETRANSMITS},
        lossless=plan.transport == "otn-lossless" and not any(d.loss for d in plan.network.directions),
    )


def _loss_signs(lab: Lab) -> dict[str, int]:
    """TCP's signs of loss, over all nodes."""
    total = dict.fromkeys(LOSS_SIGNS, 0)
    for counters in lab.tcp_counters().values():
        for name in LOSS_SIGNS:
            total[name] += counters.get(name, 0)
    return total
