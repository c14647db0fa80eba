"""The verdict on a session's cases and the comparison with the model, written whenever another case is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from testbed.judge import compare, numerics
from testbed.judge.evidence import Evidence, Profiling, judge
from testbed.judge.messages import FlowMessages, Likeness, by_flow, message_times
from testbed.judge.witnesses import disturbed
from testbed.lab.gate import Gate
from testbed.plan import memory_bytes, unmodelled
from testbed.plan.costs import problem_of_case
from testbed.plan.exchange import sites_of
from testbed.plan.plan import Plan
from testbed.plan.unlike import full_scale_time
from testbed.results.directory import Results
from testbed.schedule.schedule_file import as_document
from testbed.session.case import Trained
from testbed.session.pinning import Pinning
from testbed.session.profile import Profiled
from testbed.thresholds import TIE, UNPACED_TIE
from testbed.trace.summary import summaries
from testbed.trace.tables import concatenate
from testbed.train.job import Reference


class Before(NamedTuple):
    """What was found out before the first case."""

    reference: Reference
    links: Gate
    pinned: Pinning
    profile: Profiled | None = None
    """Of an unpaced job."""


def conclude(
    plan: Plan,
    trained: Sequence[Trained],
    before: Before,
    identity: Mapping[str, Any],
    results: Results,
) -> dict[str, Any]:
    """Judge and compare what was trained so far; write it all down, comparison.json last. Returns its content."""
    cases = {one.case.label: _evidence(plan, one, before) for one in trained}
    schedules = compare.compare([_measured(plan, one, cases[one.case.label]) for one in trained])
    tie = TIE if plan.jobs[0].workload.pacing else UNPACED_TIE
    facts = {
        **identity,
        "complete": len(trained) == len(plan.cases),
        "ranking_as_predicted": compare.same_ranking(schedules, tie),
        "ranking_tie": tie,
    }
    document = compare.as_document(facts, schedules)
    results.save_tables()
    results.save_evidence(cases)
    rows = {label: case.rows for label, case in cases.items()}
    results.save_json("numerics.json", numerics.as_document(before.reference, rows))
    results.save_json("schedules.json", as_document({one.case.label: one.generated for one in trained}))
    results.save_json("comparison.json", document)
    return document


def _measured(plan: Plan, one: Trained, case: Evidence) -> compare.Measured:
    rows, job, schedule = case.measured, plan.jobs[0], one.schedule
    problem = problem_of_case(plan, one.case)
    predicted = memory_bytes.predicted_bytes(job, schedule)
    limits = memory_bytes.activation_limits(job, problem, schedule)
    return compare.Measured(
        schedule=one.case.jobs[0].choice.schedule,
        label=one.case.label,
        rows=rows,
        predicted=summaries(one.predicted)[0],
        checks=judge(case),
        solver=one.generated.proof and one.generated.proof._asdict(),
        on_this_host=one.on_this_host,
        disturbed=np.asarray(disturbed(rows, case.usual)).tolist() if case.real else None,
        messages=case.flows,
        full_scale=full_scale_time(plan, job, problem, schedule),
        memory=memory_bytes.as_json(one.memory or None, predicted, limits),
    )


def _evidence(plan: Plan, one: Trained, before: Before) -> Evidence:
    assert one.network is not None  # the case is over
    paced, profile = plan.jobs[0].workload.pacing is not None, before.profile
    counted = {row.iteration for row in one.rows if not row.warmup}
    traces = [trace for trace in one.measured if int(trace.iterations()[0]) in counted]
    problem = problem_of_case(plan, one.case)
    ranks = Likeness(problem.alike, problem.tensor, sites_of(plan.jobs[0]))
    times = message_times(concatenate(traces), one.predicted, paced=paced, ranks=ranks)
    flows = by_flow(times)
    # on the virtual clock messages are held against the model, which has not all that a plan may ask for
    told = plan.clock.name == "real" or not unmodelled.warnings(plan)
    return Evidence(
        paced=paced,
        real=plan.clock.name == "real",
        link_reasons=before.links.reasons(),
        profiling=None if profile is None else Profiling(before.pinned.reasons, profile.spread),
        rows=one.rows,
        usual=one.costs.rows if one.costs else profile.rows if profile else (),
        network=one.network,
        traffic=one.traffic,
        reference=before.reference,
        predicted_s=float(one.predicted.makespans()[0]),
        on_this_host_s=one.on_this_host and one.on_this_host.median_s,
        alike_replicas=problem.alike,
        flows=flows,
        usual_extra_s=_usual_s(plan, one, flows) if paced and told else None,
    )


def _usual_s(plan: Plan, one: Trained, flows: Sequence[FlowMessages]) -> list[float]:
    """Per flow, the first quartile of its messages' extra time before the run; 0 where the machine adds nothing."""
    if one.costs is None:
        return [0.0] * len(flows)
    problem, extra = problem_of_case(plan, one.case), one.costs.extra
    return [
        float(np.percentile(extra.of(flow.source_rank, flow.target_rank, problem.crosses(*flow[:2])), 25))
        for flow in flows
    ]
