"""What `run` and `report` print of events: between iterations, what they changed and what that was worth; of links that
change, when that was, and what their iterations took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from testbed.cli.table_formats import NEVER
from testbed.cli.table_layout import Column, Section, fitted
from testbed.units import show_change, show_span, show_time, show_times

if TYPE_CHECKING:
    from testbed.plan.plan import Plan
    from testbed.plan.timeline import LinkEvent
    from testbed.planning.training_prediction import TrainingPrediction


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
        show_change(measured / predicted - 1, 2) if event.get("modelled", True) else "not in the model"
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
    with what happens in them; the first is 0. The last one is that which never ends, where there is one, in None s."""
    from testbed.planning.drawn_iterations import phase_of, rank_changes
    from testbed.planning.prediction import predict_training

    warmup, found = plan.jobs[0].workload.warmup, []
    for case in plan.cases:
        training = predict_training(plan, case)
        happens = [(placed.round, placed.event.said, _is_over(placed.event, plan)) for placed in training.events]
        happens += [(change.round, change.said, False) for change in rank_changes(plan, case)]
        happens.sort(key=lambda one: one[0])
        if not happens:
            continue
        begun = set[str]()
        for mine, predicted_s in _alike(training, phase_of(plan, case).measured):
            come = [(said, over and said in begun) for number, said, over in happens if number in mine]
            begun.update(said for said, _ in come)
            told = dict.fromkeys(f"{said}: over" if over else said for said, over in come)
            span = {"label": case.label, "first": mine[0] - warmup, "last": mine[-1] - warmup}
            found.append(span | {"predicted_s": predicted_s, "events": list(told)})
    return found


def _is_over(event: LinkEvent, plan: Plan) -> bool:
    """Whether it gives its direction back what the topology says, and nothing else."""
    from testbed.plan.network_state import planned

    own = planned(plan.network).links[event.direction]
    values = ((getattr(event, name), getattr(own, name)) for name in ("delay_s", "rate_bps", "loss", "jitter_s"))
    return event.sends is not False and all(value in (None, before) for value, before in values)


def _alike(training: TrainingPrediction, rounds: Sequence[int]) -> Iterator[tuple[list[int], float | None]]:
    """Those of these rounds that take the same, and how long; behind one that never ends, None, none is trained."""
    from testbed.trace.predictions import predicted_numbers, predicted_times_s

    never = math.inf if training.endless is None else training.endless.round
    ending = [number for number in rounds if number < never]
    stands_for, times_s = predicted_numbers(training.trace, ending).tolist(), predicted_times_s(training.trace, ending)
    for number in dict.fromkeys(stands_for):
        places = [place for place, of in enumerate(stands_for) if of == number]
        yield [ending[place] for place in places], float(times_s[places[0]])
    if never in rounds:
        yield [int(never)], None


def predicted_event_tables(spans: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """What is predicted of iterations around events; nothing where links stay as they are."""
    if not spans:
        return []
    key = Column("schedule", [span["label"] for span in spans], left=True)
    times = show_times([span["predicted_s"] for span in spans])
    predicted = [NEVER if span["predicted_s"] is None else time for span, time in zip(spans, times, strict=True)]
    columns = [
        Column("iterations", [show_span(str(span["first"]), str(span["last"])) for span in spans]),
        Column("predicted", predicted),
        Column("in which", ["; ".join(span["events"]) or "-" for span in spans], left=True, wrapped=True),
    ]
    return fitted(key, [Section("iterations as links and ranks change", columns)], width)
