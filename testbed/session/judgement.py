"""The verdict on a session's cases and the comparison with the model, written whenever another case is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from testbed.full_scale.similitude_bound import full_scale_time
from testbed.judge import comparison
from testbed.judge import network_metric as fair
from testbed.judge.comparison import Beside, MeasuredCase
from testbed.judge.evidence import Evidence, Profiling, judge
from testbed.judge.execution import executed_rows, planned_rows
from testbed.judge.messages import FlowMessages, Likeness, MessageTimes, by_flow, by_iteration, message_times
from testbed.judge.network_metric import CaseFairness
from testbed.judge.witnesses import disturbed
from testbed.lab.gate import Gate
from testbed.model.host_prediction import predict_on_host
from testbed.model.network import Floats
from testbed.model.replay import on_the_way_s
from testbed.plan import memory_bytes
from testbed.plan.costs import predict_case
from testbed.plan.exchange import sites_of
from testbed.plan.plan import Case, Plan
from testbed.plan.traffic import directions_of_pairs, super_packets_s
from testbed.planning.left_out import left_out_of
from testbed.results.directory import Results
from testbed.schedule.registry import Generated
from testbed.session.case import TrainedCase, TrainedJob
from testbed.session.message_costs import in_the_run
from testbed.session.pinning import Pinning
from testbed.session.profile import Profiled
from testbed.thresholds import TIE, UNPACED_TIE
from testbed.trace.predictions import predicted_summary, predicted_times_s
from testbed.trace.tables import MESSAGE_KINDS, Trace, concatenate
from testbed.train.assignment import ReferenceOutcome


class Before(NamedTuple):
    """What was found out before the first case."""

    references: Sequence[ReferenceOutcome]
    """Per job."""
    links: Gate
    pinned: Pinning
    profile: Profiled | None = None
    """Of an unpaced job."""


class JudgedCase(NamedTuple):
    """What is kept of a finished case; by number of the jobs at work."""

    label: str
    generated: Mapping[int, Generated]
    evidence: Mapping[int, Evidence]
    measured: Mapping[int, MeasuredCase]
    fairness: CaseFairness | None
    """Where there is anything to share or to choose."""


def judge_case(plan: Plan, trained: TrainedCase, before: Before) -> JudgedCase:
    """Judge every job of a case that was just trained."""
    traces = list(map(_counted, trained.jobs))
    order_sensitive = any(job.predicted_range for job in trained.jobs)
    due_s = on_the_way_s([job.load for job in trained.jobs], traces, order_sensitive=order_sensitive)
    left_out = {job.number: left_out_of(plan, trained.case, job.number) for job in trained.jobs}
    evidence = {
        job.number: _evidence(plan, trained, job, before, trace, due, modelled=not any(left_out.values()))
        for job, trace, due in zip(trained.jobs, traces, due_s, strict=True)
    }
    measured = {
        job.number: _measured(plan, trained.case, job, evidence[job.number], left_out[job.number])
        for job in trained.jobs
    }
    generated = {job.number: job.generated for job in trained.jobs}
    fairness = _fairness(plan, trained, traces) if trained.case.alone_of is None and fair.counts(plan) else None
    return JudgedCase(trained.case.label, generated, evidence, measured, fairness)


def _fairness(plan: Plan, trained: TrainedCase, traces: Sequence[Trace]) -> CaseFairness:
    """`traces` of the iterations that count, of every job at work."""
    parts = [job.predicted for job in trained.jobs], traces
    predicted, found = (
        concatenate([part.as_job(job.number, job.job.mesh.ranks) for part, job in zip(each, trained.jobs, strict=True)])
        for each in parts
    )
    seconds = [job.predicted_s for job in trained.jobs], [job.median_s for job in trained.jobs]
    return fair.fairness_of(plan, trained.case, (predicted, found), trained.traffic, seconds)


def conclude(
    plan: Plan,
    judged: Sequence[JudgedCase],
    before: Before,
    identity: Mapping[str, Any],
    results: Results,
) -> dict[str, Any]:
    """Compare what is finished so far; write it all down, comparison.json last. Returns its content."""
    schedules = comparison.compare([run for case in judged for run in case.measured.values()])
    tie = TIE if all(job.workload.pacing for job in plan.jobs) else UNPACED_TIE
    facts = {
        **identity,
        "complete": len(judged) == len(plan.cases),
        "ranking_as_predicted": comparison.same_ranking(schedules, tie),
        "ranking_pairs": comparison.ranked_pairs(schedules, tie)._asdict(),
        "ranking_tie": tie,
    }
    document = comparison.as_document(facts, schedules, [case.fairness for case in judged if case.fairness is not None])
    results.save_tables()
    evidence = {case.label: case.evidence for case in judged}
    results.save_evidence(evidence)
    results.save_numerics(before.references, evidence)
    results.save_schedules({case.label: case.generated for case in judged})
    results.save_json("comparison.json", document)
    return document


def _measured(plan: Plan, case: Case, job: TrainedJob, evidence: Evidence, left_out: list[str]) -> MeasuredCase:
    rows, schedule, problem = evidence.measured, job.load.schedule, job.load.problem
    predicted = memory_bytes.predicted_bytes(job.job, schedule)
    limits = memory_bytes.activation_limits(job.job, problem, schedule)
    beside = None
    if len(plan.jobs) > 1:
        alone = predict_case(plan, case, schedule, job=job.number)
        beside = Beside(job.job.name, job.load.start_s, float(alone.makespans()[0]), case.alone_of)
    return MeasuredCase(
        schedule=case.jobs[job.number].choice.schedule,
        label=case.label,
        rows=rows,
        predicted=predicted_summary(job.predicted, [row.iteration for row in rows]),
        predicted_range=job.predicted_range,
        checks=judge(evidence),
        solver=job.generated.proof and job.generated.proof._asdict(),
        on_this_host=job.on_this_host,
        disturbed=np.asarray(disturbed(rows, evidence.baseline)).tolist() if evidence.real else None,
        messages=evidence.flows,
        full_scale=full_scale_time(plan, job.job, problem, schedule),
        memory=memory_bytes.as_json(job.memory or None, predicted, limits),
        left_out=left_out,
        packets_lost=None if evidence.network.lossless else evidence.network.drops,
        beside=beside,
    )


def _counted(job: TrainedJob) -> Trace:
    """Its iterations that count."""
    counted = set(job.counted)
    return concatenate([trace for trace in job.measured if int(trace.iterations()[0]) in counted])


def _evidence(
    plan: Plan,
    case: TrainedCase,
    job: TrainedJob,
    before: Before,
    measured: Trace,
    due_s: Floats | None,
    *,
    modelled: bool,
) -> Evidence:
    """`measured` are the iterations that count, `due_s` what their messages should have taken by all that was sent."""
    paced, profile = job.job.workload.pacing is not None, before.profile
    problem, first_rank = job.load.problem, job.job.mesh.first_rank
    ranks = Likeness(problem.first_like, problem.tensor, sites_of(job.job))
    times = message_times(measured, job.predicted, paced=paced, ranks=ranks, on_the_way_s=due_s)
    flows = by_flow(times, first_rank)
    baseline_s, differs_s = _baseline_extra_s(job, flows)
    pairs = [(flow.source_rank, flow.target_rank) for flow in flows]
    # on the virtual clock messages are held against the model, which has not all that a plan may ask for
    comparable = plan.clock.name == "real" or modelled
    # of late receives nothing else than the prediction says what messages should take
    comparable &= job.predicted_range is None or due_s is not None
    return Evidence(
        paced=paced,
        real=plan.clock.name == "real",
        link_reasons=before.links.reasons(),
        profiling=None if profile is None else Profiling(before.pinned.reasons, profile.spread),
        rows=job.rows,
        baseline=job.costs.rows if job.costs else profile.rows if profile else (),
        network=case.network,
        traffic=case.traffic,
        reference=before.references[job.number].of_first(len(job.rounds)),
        fingerprints=job.fingerprints,
        executed=executed_rows(concatenate(job.measured), first_rank),
        planned=planned_rows(job.job.mesh, case.case.jobs[job.number].rows),
        predicted_s=job.predicted_s,
        own_predicted_s=predicted_times_s(job.predicted, job.counted),
        on_this_host_s=job.on_this_host and job.on_this_host.median_s,
        first_like_replicas=problem.first_like,
        flows=flows,
        overtaken_s=times.median_overtaken_s(),
        baseline_extra_s=baseline_s if paced and comparable else None,
        baseline_differs_s=differs_s,
        super_packets_s=super_packets_s(plan, case.case, pairs) if _by_chance(plan, job) else (),
        quartiles_s=by_iteration(times),
        routes=directions_of_pairs(plan, case.case, pairs),
        range_s=job.predicted_range and (job.predicted_range.low_s, job.predicted_range.high_s),
        in_run_s=_in_run_s(case, job, times),
        modelled=modelled,
    )


def _in_run_s(case: TrainedCase, job: TrainedJob, times: MessageTimes) -> float | None:
    """An iteration with what messages took beyond the model in the run; None where nothing was measured before it."""
    if job.costs is None or len(case.jobs) > 1:
        return None
    extra = in_the_run(times, job.load.problem)
    return predict_on_host(job.load, extra).median_s if extra.by_flow else None


def _by_chance(plan: Plan, job: TrainedJob) -> bool:
    """Whether a message may come a super-packet earlier or later than another one than predicted: what tensor ranks,
    replicas and jobs send has no order of its own, nor have notices."""
    alone = len(plan.jobs) == 1 and job.job.mesh.size == job.job.mesh.pp
    return plan.clock.name == "real" or not alone or job.predicted_range is not None or job.load.receives != "early"


def _baseline_extra_s(job: TrainedJob, flows: Sequence[FlowMessages]) -> tuple[list[float], list[float]]:
    """Per flow, the first quartile of its messages' extra time before the run, and by how much it differs by chance
    from that in the run; 0 and nothing where the machine adds nothing."""
    if job.costs is None:
        return [0.0] * len(flows), []
    problem, extra, first = job.load.problem, job.costs.extra, job.job.mesh.first_rank
    quartiles, differs = [], []
    for flow in flows:
        ends = flow.source_rank - first, flow.target_rank - first
        name, crosses = (*ends, MESSAGE_KINDS.index(flow.kind)), problem.crosses(*ends)
        quartiles.append(float(np.percentile(extra.of(name, crosses), 25)))
        differs.append(extra.differs_s(name, crosses, flow.awaited + flow.impossible))
    return quartiles, differs
