"""What comparison.json has of a case whose workers failed: what its time went into, foretold and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.goodput.recovering_plan import spans_of_case
from testbed.goodput.spans import Span, shares_of
from testbed.plan.plan import Plan
from testbed.session.case import TrainedCase


def goodput_entry(plan: Plan, done: TrainedCase) -> dict[str, Any]:
    """An entry of `goodput`."""
    assert plan.recovery is not None
    expected, measured = spans_of_case(plan, done.case), done.spans
    trained = [span.iteration for span in measured if span.what.value == "train"]
    return {
        "label": done.case.label,
        "failures": sum(span.failure is not None for span in expected),
        "trained_again": len(trained) - len(set(trained)),
        "mtbf_s": _mtbf_s(measured),
        "predicted": _shares(expected),
        "measured": _shares(measured),
        "spans": [_written(span) for span in measured],
    }


def _mtbf_s(spans: Sequence[Span]) -> float | None:
    failures = sum(span.failure is not None for span in spans)
    return spans[-1].end_s / failures if failures else None


def _shares(spans: Sequence[Span]) -> dict[str, float]:
    shares = shares_of(spans)
    return shares._asdict() | {"total_s": shares.total_s, "goodput": shares.goodput}


def _written(span: Span) -> dict[str, Any]:
    failed = None if span.failure is None else span.failure.rank
    return {"what": span.what.value, "iteration": span.iteration, "begin_s": span.begin_s, "end_s": span.end_s} | (
        {} if failed is None else {"failed_rank": failed}
    )
