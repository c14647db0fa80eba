"""The verdict on a session's cases and the comparison with the model, from the files, whenever a training is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from testbed.full_scale.similitude_bound import full_scale_time
from testbed.goodput.recovering_plan import spans_of_case
from testbed.goodput.spans import shares_of
from testbed.judge import comparison
from testbed.judge import network_metric as fair
from testbed.judge.comparison import Beside, MeasuredCase
from testbed.judge.evidence import CaseEvidence, judge
from testbed.judge.fidelity import NetworkEvidence, SlotsEvidence
from testbed.judge.iterations import IterationRow
from testbed.judge.messages import FlowMessages, MessageTimes, by_flow
from testbed.judge.network_metric import CaseFairness
from testbed.judge.witnesses import disturbed
from testbed.model.host_prediction import predict_on_host
from testbed.plan import memory_bytes
from testbed.plan.events import swaps
from testbed.plan.microbatches import job_in
from testbed.plan.plan import Case, Plan
from testbed.plan.traffic import directions_of_pairs, super_packets_s
from testbed.planning.drawn_iterations import rank_changes
from testbed.planning.left_out import left_out_of, of_events
from testbed.planning.prediction import predict_alone
from testbed.planning.training_prediction import link_events_of
from testbed.results.directory import FinishedJob, ResultsWriter
from testbed.results.metric_recheck import fairness_in_case
from testbed.results.recheck import evidence_of
from testbed.results.run_files import RunFiles
from testbed.session.chance_evidence import chance_of_flows, held_against_model
from testbed.session.message_costs import in_the_run
from testbed.session.trained import TrainedCase, TrainedJob
from testbed.thresholds import TIE, UNPACED_TIE
from testbed.trace.predictions import predicted_summary, predicted_times_s
from testbed.trace.tables import MESSAGE_KINDS


class JudgedCase(NamedTuple):
    """What is kept of a finished case."""

    measured: Sequence[MeasuredCase]
    """Per job at work."""
    fairness: CaseFairness | None
    """Where there is anything to share or to choose."""


def judge_cases(
    plan: Plan, done: Sequence[TrainedCase], profiled: Sequence[IterationRow], results: ResultsWriter
) -> list[JudgedCase]:
    """Write what was found of cases that were just trained, and judge every job by what is written.

    `profiled`: iterations of an unpaced job, measured before.
    """
    results.save_new()
    files = RunFiles(results.directory, [trained.case.label for trained in done])
    left_out = dict[str, dict[int, list[str]]]()
    for trained in done:
        label, order_sensitive = trained.case.label, any(job.predicted_range for job in trained.jobs)
        times = files.message_times(label, order_sensitive=order_sensitive)
        by_network = {job.number: left_out_of(plan, trained.case, job.number) for job in trained.jobs}
        by_events = of_events(plan, trained.case)
        left_out[label] = {number: [*lines, *by_events] for number, lines in by_network.items()}
        modelled = not any(by_network.values()) and trained.compares
        held = not modelled and held_against_model(plan, trained, by_network)
        known = {
            job.number: FinishedJob(
                rows=job.rows,
                baseline=job.costs.rows if job.costs else profiled,
                fingerprints=job.fingerprints,
                evidence={
                    **_evidence(plan, trained, job, times[job.number], modelled=modelled),
                    **chance_of_flows(plan, trained, job, times[job.number], held=held),
                },
                generated=job.generated,
            )
            for job in trained.jobs
        }
        results.add_finished(label, trained.network, known)
    results.save_finished()
    return [_judged(plan, trained, files, left_out[trained.case.label]) for trained in done]


def _judged(plan: Plan, trained: TrainedCase, files: RunFiles, left_out: Mapping[int, list[str]]) -> JudgedCase:
    case, found = trained.case, evidence_of(files, trained.case.label)
    # the metric is of links' counters, which a lab has
    has_metric = case.alone_of is None and fair.counts(plan) and trained.network.clocks is None
    return JudgedCase(
        [_measured(plan, case, job, found[job.number], left_out[job.number]) for job in trained.jobs],
        fairness_in_case(files, case.label) if has_metric else None,
    )


def conclude(
    plan: Plan, judged: Sequence[JudgedCase], identity: Mapping[str, Any], results: ResultsWriter
) -> dict[str, Any]:
    """Compare what is finished so far; write comparison.json, the last of all files. Returns its content."""
    schedules = comparison.compare([run for case in judged for run in case.measured])
    tie = TIE if all(job.workload.pacing for job in plan.jobs) else UNPACED_TIE
    facts = {
        **identity,
        "complete": len(judged) == len(plan.cases),
        "ranking_as_predicted": comparison.same_ranking(schedules, tie),
        "ranking_pairs": comparison.ranked_pairs(schedules, tie)._asdict(),
        "ranking_tie": tie,
    }
    document = comparison.as_document(facts, schedules, [case.fairness for case in judged if case.fairness is not None])
    results.save_json("comparison.json", document)
    return document


def _measured(plan: Plan, case: Case, job: TrainedJob, evidence: CaseEvidence, left_out: list[str]) -> MeasuredCase:
    rows, schedule, problem = evidence.measured, job.load.schedule, job.load.problem
    iterations = [row.iteration for row in rows]
    as_it_is = job_in(job.job, case.jobs[job.number])
    predicted = memory_bytes.predicted_bytes(as_it_is, schedule, swaps=swaps(plan))
    limits = memory_bytes.activation_limits(as_it_is, problem, schedule)
    beside = None
    if len(plan.jobs) > 1:
        alone = predict_alone(plan, case, job.loads, job.number)
        alone_s = predicted_summary(alone, iterations, mean=job.free).makespan_s
        beside = Beside(job.job.name, job.load.start_s, alone_s, case.alone_of)
    return MeasuredCase(
        schedule=case.jobs[job.number].choice.schedule,
        label=case.label,
        rows=rows,
        predicted=predicted_summary(job.predicted, iterations, mean=job.free),
        statistic="mean" if job.free else "median",
        predicted_p95_s=float(np.percentile(predicted_times_s(job.predicted, iterations), 95)),
        predicted_range=job.predicted_range,
        checks=judge(evidence),
        solver=job.generated.proof and job.generated.proof._asdict(),
        on_this_host=job.on_this_host,
        disturbed=np.asarray(disturbed(rows, evidence.baseline)).tolist() if evidence.real else None,
        messages=evidence.flows,
        full_scale=full_scale_time(plan, job.job, problem, schedule),
        memory=memory_bytes.as_json(job.memory or None, predicted, limits),
        left_out=left_out,
        packets_lost=_lost(evidence.network),
        beside=beside,
        changed=bool(link_events_of(plan, case) or rank_changes(plan, case)),
    )


def _lost(network: NetworkEvidence) -> int | None:
    """What a network lost that may lose some; of a real one what TCP has sent again."""
    if network.lossless:
        return None
    return network.drops if network.clocks is None else network.retransmits


def _evidence(plan: Plan, case: TrainedCase, job: TrainedJob, times: MessageTimes, *, modelled: bool) -> dict[str, Any]:
    """What evidence.json has of a job: what its verdict is to be told by, and no other file says."""
    paced, flows = job.job.workload.pacing is not None, by_flow(times, job.job.mesh.first_rank)
    baseline_s, differs_s = _baseline_extra_s(job, flows)
    pairs = [(flow.source_rank, flow.target_rank) for flow in flows]
    # on the virtual clock messages are held against the model, which has not all that a plan may ask for
    comparable = plan.clock.name == "real" or modelled
    # of late receives nothing else than the prediction says what messages should take
    comparable &= job.predicted_range is None or all(trained.load.receives == "early" for trained in case.jobs)
    return {
        "baseline_extra_s": baseline_s if paced and comparable else None,
        "baseline_differs_s": differs_s,
        "super_packets_s": super_packets_s(plan, case.case, pairs) if _by_chance(plan, job) else (),
        "routes": directions_of_pairs(plan, case.case, pairs),
        "range_s": job.predicted_range and (job.predicted_range.low_s, job.predicted_range.high_s),
        "on_this_host_s": job.on_this_host and job.on_this_host.median_s,
        "in_run_s": _in_run_s(case, job, times),
        "modelled": modelled,
        "slots": _slots(plan, case, modelled=modelled),
        "disturbed_before": [one._asdict() for one in case.disturbed_before],
    }


def _slots(plan: Plan, case: TrainedCase, *, modelled: bool) -> dict[str, Any] | None:
    """SlotsEvidence; None where workers cannot fail."""
    if not case.spans:
        return None
    training_s, exchanges_s = case.spans[-1].end_s - case.spans[0].begin_s, 0.0
    if modelled:
        dp = plan.jobs[0].mesh.dp
        measured, foretold = (shares_of(spans, dp) for spans in (case.spans, spans_of_case(plan, case.case)))
        exchanges_s = measured.saving_s + measured.restarting_s - foretold.saving_s - foretold.restarting_s
        exchanges_s -= sum(case.restarts_late_s) + sum(case.saves_late_s)
    return SlotsEvidence([*case.restarts_late_s], [*case.saves_late_s], training_s, exchanges_s)._asdict()


def _in_run_s(case: TrainedCase, job: TrainedJob, times: MessageTimes) -> float | None:
    """An iteration with what messages took beyond the model in the run; None where nothing was measured before it."""
    if job.costs is None or len(case.jobs) > 1:
        return None
    extra = in_the_run(times, job.load.problem)
    return predict_on_host(job.load, extra).median_s + job.beyond_load_s if extra.by_flow else None


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
