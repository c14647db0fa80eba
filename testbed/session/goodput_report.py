"""What comparison.json has of a case whose workers failed: what its time went into, foretold and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from testbed.goodput.foretelling import foretold_of_case, shares_document
from testbed.goodput.spans import Span
from testbed.plan.network_state import network_at
from testbed.plan.plan import Plan
from testbed.session.trained import TrainedCase


def goodput_entry(plan: Plan, done: TrainedCase) -> dict[str, Any]:
    """An entry of `goodput`."""
    assert plan.recovery is not None
    foretold, measured = foretold_of_case(plan, done.case), done.spans
    trained = [span.iteration for span in measured if span.what.value == "train"]
    return {
        "label": foretold["label"],
        "failures": foretold["failures"],
        "trained_again": len(trained) - len(set(trained)),
        "mtbf_s": _mtbf_s(measured),
        "predicted": foretold["predicted"],
        "measured": shares_document(measured, plan.jobs[0]),
        "spans": [_written(span) for span in measured],
    } | _of_links(plan, done)


def _of_links(plan: Plan, done: TrainedCase) -> dict[str, Any]:
    """What links carried of states, how late they came to carry nothing, and what did not fit into a restart's slot;
    none of what there was not."""
    late_s = {"cuts_late_s": max(done.cuts_late_s)} if done.cuts_late_s else {}
    late = [seconds for seconds in done.restarts_late_s if seconds > 0]
    late_s |= {"restarts_late": len(late), "restarts_late_s": max(late)} if late else {}
    return late_s | ({"states": _states(plan, done)} if done.exchanged else {})


def _states(plan: Plan, done: TrainedCase) -> list[dict[str, Any]]:
    """Per direction and card that states have crossed, bytes of all exchanges that came to their end."""
    labels = [direction.label for direction in network_at(plan, done.case).everything]
    found = []
    for what in ("save", "restore", "join", "cut anew"):
        of_kind = [one for one in done.exchanged if one.what == what]
        for index, label in enumerate(labels):
            planned = sum(one.planned_bytes[index] for one in of_kind)
            counted = (
                sum(one.counted_bytes[index] for one in of_kind) if all(o.counted_bytes for o in of_kind) else None
            )
            if planned or counted:
                row = {"what": what, "direction": label, "planned_bytes": planned, "wire_bytes": counted}
                found.append(row | {"times": len(of_kind)})
    return found


def _mtbf_s(spans: Sequence[Span]) -> float | None:
    failures = sum(span.failure is not None for span in spans)
    return spans[-1].end_s / failures if failures else None


def _written(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {"what": span.what.value, "iteration": span.iteration}
    found |= {"begin_s": span.begin_s, "end_s": span.end_s}
    if span.replicas:
        found["replicas"] = list(span.replicas)
    if span.joining:
        found["joining"] = list(span.joining)
    if span.held:
        found["held"] = [held.value for held in span.held]
    if span.failure is not None:
        failure = span.failure
        found |= {"failed_rank": failure.rank} if failure.rank is not None else {"failed_place": failure.place}
        found |= {} if failure.cut_s is None else {"cut_s": failure.cut_s}
    return found
