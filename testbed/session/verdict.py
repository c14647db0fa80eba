"""The verdict on a session's cases and the comparison with the model, written whenever another case is finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from testbed.judge import compare, fidelity, numerics
from testbed.judge.messages import FlowMessages, by_flow, message_times
from testbed.judge.witnesses import disturbed
from testbed.lab.gate import Gate
from testbed.plan.costs import problem_of_case
from testbed.plan.plan import Plan
from testbed.results.directory import Results
from testbed.schedule.schedule_file import as_document
from testbed.session.case import Trained
from testbed.session.pinning import Pinning
from testbed.session.profile import Profiled
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
    schedules = compare.compare([_measured(plan, one, before) for one in trained])
    facts = {
        **identity,
        "complete": len(trained) == len(plan.cases),
        "ranking_as_predicted": compare.same_ranking(schedules),
    }
    document = compare.as_document(facts, schedules)
    results.save_tables()
    cases = {one.case.label: one.rows for one in trained}
    results.save_json("numerics.json", numerics.as_document(before.reference, cases))
    results.save_json("schedules.json", as_document({one.case.label: one.generated for one in trained}))
    results.save_json("comparison.json", document)
    return document


def _measured(plan: Plan, one: Trained, before: Before) -> compare.Measured:
    rows = [row for row in one.rows if not row.warmup]
    paced = plan.jobs[0].workload.pacing is not None
    real = plan.clock.name == "real"
    usual = one.costs.rows if one.costs else before.profile.rows if before.profile else ()
    host = one.on_this_host
    checks = [
        *_given(before),
        *one.checks,
        numerics.loss_check(one.losses, before.reference),
        numerics.gradient_check(one.rows, before.reference),
    ]
    if real:
        checks += [numerics.count_check(len(rows)), fidelity.disturbance_check(rows, usual)]
    if before.profile is not None:
        checks.append(fidelity.core_check(rows, before.profile.rows))
    if host is not None:
        checks.append(fidelity.host_check(float(one.predicted.makespans()[0]), host.median_s))
    counted = {row.iteration for row in rows}
    traces = [trace for trace in one.measured if int(trace.iterations()[0]) in counted]
    alike = problem_of_case(plan, one.case).alike
    flows = by_flow(message_times(concatenate(traces), one.predicted, paced=paced, alike=alike))
    if paced:
        checks.append(fidelity.message_check(flows, _usual_s(plan, one, flows)))
    return compare.Measured(
        schedule=one.case.jobs[0].choice.schedule,
        label=one.case.label,
        rows=rows,
        predicted=summaries(one.predicted)[0],
        checks=checks,
        solver=one.generated.proof and one.generated.proof._asdict(),
        on_this_host=host,
        disturbed=np.asarray(disturbed(rows, usual)).tolist() if real else None,
        messages=flows,
    )


def _given(before: Before) -> list[fidelity.Check]:
    """What was settled before the first case."""
    checks = [fidelity.given_check("links as asked", before.links.reasons(), "all that follows depends on them")]
    if before.profile is not None:
        why = "a rank that shares a core takes as long as the others let it"
        checks.append(fidelity.given_check("a core for every rank", before.pinned.reasons, why))
        checks.append(fidelity.profile_check(before.profile.spread))
    return checks


def _usual_s(plan: Plan, one: Trained, flows: Sequence[FlowMessages]) -> list[float]:
    """Per flow, the first quartile of its messages' extra time before the run; 0 where the machine adds nothing."""
    if one.costs is None:
        return [0.0] * len(flows)
    problem, extra = problem_of_case(plan, one.case), one.costs.extra
    return [
        float(np.percentile(extra.of(flow.source_rank, flow.target_rank, problem.crosses(*flow[:2])), 25))
        for flow in flows
    ]
