"""What is foretold of plans whose workers fail: iterations as they are played, and what the time goes into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.goodput.elastic_spans import sets_of_rounds
from testbed.goodput.elastic_training import elastic_training, range_of
from testbed.goodput.recovering_plan import spans_of_case
from testbed.goodput.spans import Span, shares_of
from testbed.plan.plan import Case, Job, Plan
from testbed.planning.drawn_iterations import phase_of
from testbed.planning.prediction import PredictedRow, parts_of, predicted_rows
from testbed.trace.predictions import predicted_summary


def predicted_rows_as_played(plan: Plan) -> list[PredictedRow]:
    """As `predicted_rows`, of a job that goes on with fewer replicas with those that are left. Raises as that."""
    rows = predicted_rows(plan)
    if plan.recovery is None or plan.recovery.elastic is None:
        return rows
    return [_as_played(plan, row) for row in rows]


def _as_played(plan: Plan, row: PredictedRow) -> PredictedRow:
    played = elastic_training(plan, row.case)
    (part,) = parts_of(plan, row.case, played.prediction.trace)
    found = predicted_summary(part, played.prediction.compared(phase_of(plan, row.case).measured))
    return row._replace(
        predicted_s=found.makespan_s,
        predicted_alone_s=found.makespan_s,
        predicted_range=range_of(plan, row.case, played),
        bubble_predicted=found.bubble_ratio,
        bubble_alone_predicted=found.bubble_ratio,
    )


def foretold_goodput(plan: Plan) -> list[dict[str, Any]]:
    """Of every case, how many failures are in it and what its time goes into, under the names of comparison.json."""
    return [] if plan.recovery is None else [foretold_of_case(plan, case) for case in plan.cases]


def foretold_of_case(plan: Plan, case: Case) -> dict[str, Any]:
    """An entry of the same."""
    spans = spans_of_case(plan, case)
    failures = sum(span.failure is not None for span in spans)
    return {"label": case.label, "failures": failures, "predicted": shares_document(spans, plan.jobs[0])}


def shares_document(spans: Sequence[Span], job: Job) -> dict[str, float]:
    """What the time of a job went into, in seconds by name; its goodput, and samples where batches differ."""
    shares, workload = shares_of(spans, job.mesh.dp), job.workload
    found = shares._asdict() | {"total_s": shares.total_s, "goodput": shares.goodput}
    if spans[0].replicas:  # batches are not all as large
        of_one = workload.microbatches * workload.microbatch_size
        count = sum(of_one * len(replicas) for replicas in sets_of_rounds(spans))
        found |= {"samples": count, "samples_per_s": count / shares.total_s}
    else:
        del found["away_s"]
    return found
