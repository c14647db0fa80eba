"""What `run` and `report` print of events: between iterations, what they changed and what that was worth; of links that
change, when that was, and what their iterations took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from testbed.cli.table_layout import Column, Section, fitted
from testbed.units import show_time, show_times

if TYPE_CHECKING:
    from testbed.plan.plan import Plan


def event_tables(events: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """A row per event: what moved and what the controller took; then one per job: iterations around the event."""
    if not events:
        return []
    key = Column("event", [event["label"] for event in events], left=True)
    columns = [
        Column("after", [str(event["after"]) for event in events]),
        Column("flows", [str(event["flows"]) for event in events]),
        Column("new", [str(event["flows_new"]) for event in events]),
        Column("moved", [str(event["flows_moved"]) for event in events]),
        Column("had to", [str(event["flows_cut"]) for event in events]),
        Column("controller", [show_time(event["choosing_s"] + event["enforcing_s"]) for event in events]),
    ]
    tables = fitted(key, [Section("events between iterations", columns)], width)
    return tables + _iterations(events, width)


def _iterations(events: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """Measured, and predicted in brackets, before and after; the first iteration after the event is `during`."""
    rows = [(event["label"], job) for event in events for job in event["iterations"]]
    names = ("before_s", "during_s", "after_s", "before_predicted_s", "after_predicted_s")
    shown = iter(show_times([job[name] for _, job in rows for name in names]))
    cells = [[next(shown) for _ in names] for _ in rows]
    pairs = [
        Column("before m/p", [f"{before} / {predicted}" for before, _, _, predicted, _ in cells]),
        Column("during", [during for _, during, *_ in cells]),
        Column("after m/p", [f"{after} / {predicted}" for _, _, after, _, predicted in cells]),
    ]
    key = Column("event: job", [f"{label}: {job['job']}" for label, job in rows], left=True)
    return fitted(key, [Section("iterations before, during and after", pairs)], width)


def link_event_tables(events: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """What became of links, and the measured iterations in which it did, as events count them (of runs of earlier
    versions warm-up included); nothing where they stayed as they are."""
    rows = [(event, job) for event in events for job in event["iterations"]]
    if not rows:
        return []
    several = len({job["job"] for _, job in rows}) > 1
    names = [f"{event['event']}{': ' + job['job'] if several else ''} ({event['label']})" for event, job in rows]
    pairs = [(job["measured_s"], job["predicted_s"]) for _, job in rows]
    lates = ["-" if event["late_s"] is None else show_time(max(0.0, event["late_s"])) for event, _ in rows]
    errors = [
        f"{measured / predicted - 1:+.2%}" if event.get("modelled", True) else "not in the model"
        for (event, _), (measured, predicted) in zip(rows, pairs, strict=True)
    ]
    columns = [
        Column("iteration", [str(event.get("measured_iteration", event["iteration"])) for event, _ in rows]),
        Column("at", show_times([event["at_s"] for event, _ in rows])),
        Column("until", show_times([event["until_s"] for event, _ in rows])),
        Column("late", lates),
        Column("measured", show_times([measured for measured, _ in pairs])),
        Column("predicted", show_times([predicted for _, predicted in pairs])),
        Column("error", errors),
    ]
    return fitted(
        Column("event", names, left=True), [Section("iterations in which links or ranks changed", columns)], width
    )


def predicted_spans(plan: Plan) -> list[dict[str, Any]]:
    """Of every case in which links or ranks change: runs of measured iterations that are predicted to take the same,
    with what happens in them; the first is 0."""
    from testbed.planning.drawn_iterations import phase_of, rank_changes
    from testbed.planning.prediction import predict_training
    from testbed.trace.predictions import predicted_numbers, predicted_times_s

    warmup, found = plan.jobs[0].workload.warmup, []
    for case in plan.cases:
        training, rounds = predict_training(plan, case), phase_of(plan, case).measured
        happens = [(placed.round, placed.event.said) for placed in training.events]
        happens = sorted([*happens, *rank_changes(plan, case)], key=lambda one: one[0])
        if not happens:
            continue
        numbers, times_s = predicted_numbers(training.trace, rounds), predicted_times_s(training.trace, rounds)
        for number in dict.fromkeys(numbers.tolist()):
            mine = [place for place, of in enumerate(numbers.tolist()) if of == number]
            come = dict.fromkeys(said for number_of, said in happens if number_of - rounds.start in mine)
            first, last = (rounds[place] - warmup for place in (mine[0], mine[-1]))
            span = {"label": case.label, "first": first, "last": last, "predicted_s": float(times_s[mine[0]])}
            found.append(span | {"events": list(come)})
    return found


def _run_of(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def predicted_event_tables(spans: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """What is predicted of iterations around events; nothing where links stay as they are."""
    if not spans:
        return []
    key = Column("schedule", [span["label"] for span in spans], left=True)
    columns = [
        Column("iterations", [_run_of(span["first"], span["last"]) for span in spans]),
        Column("predicted", show_times([span["predicted_s"] for span in spans])),
        Column("in which", ["; ".join(span["events"]) or "-" for span in spans], left=True),
    ]
    return fitted(key, [Section("iterations as links and ranks change", columns)], width)
