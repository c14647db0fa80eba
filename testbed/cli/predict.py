"""`testbed predict`: the iteration time of every schedule by the model alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from testbed.cli import options
from testbed.cli.plan import plan_of
from testbed.cli.range_cells import show_ranges
from testbed.grouping import grouped

_Span = Mapping[str, Any]

if TYPE_CHECKING:
    from testbed.plan.plan import Plan
    from testbed.planning.prediction import PredictedRow


def predict(
    what: options.TopologyOrPlan,
    workloads: options.MoreWorkloads = None,
    schedule: options.Schedules = None,
    background: options.BackgroundFile = None,
    event: options.Events = None,
    rounds: options.Rounds = None,
    trust: options.Trust = False,
    settings: options.Settings = None,
    robust: options.Robust = False,
    strict: options.StrictOption = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict the iteration time of every schedule. Needs no root, starts no containers.

    Of several workloads: every job alone, and beside the others on the links that they share (an iteration of each,
    from one common start, or with --rounds free all that they are to train). Their schedules meet one by one, as
    `testbed plan --help` says.
    """
    from testbed.cli.event_tables import predicted_event_tables, predicted_spans
    from testbed.cli.goodput_tables import foretold_lines
    from testbed.goodput.foretelling import foretold_goodput, predicted_rows_as_played
    from testbed.planning.left_out import warnings
    from testbed.planning.prediction import ranges_of_rows

    how = {"quiet": quiet, "strict": strict, "robust": robust, "trust": trust}
    plan = plan_of(what, workloads, schedule, settings, events=event, rounds=rounds, background=background, **how)
    rows, spans = predicted_rows_as_played(plan), predicted_spans(plan)
    warned = warnings(plan, ranges_of_rows(rows))
    show = _show_one if len(plan.jobs) == 1 else _show_several
    show(plan, rows, spans, warned, as_json=as_json)
    if not as_json:
        console = options.stdout_console(80)
        options.show(console, *predicted_event_tables(spans, console.width), *options.warnings(warned))
        for line in foretold_lines(foretold_goodput(plan)):
            console.print(line, markup=False, highlight=False)


def _show_one(
    plan: Plan, rows: Sequence[PredictedRow], spans: Sequence[_Span], warned: Sequence[str], *, as_json: bool
) -> None:
    from testbed.cli import plan_tables
    from testbed.cli.full_scale_tables import full_scale_tables
    from testbed.full_scale.similitude import scale_warnings
    from testbed.full_scale.similitude_bound import full_scale_times
    from testbed.goodput.foretelling import foretold_goodput

    at_full_scale = full_scale_times(plan)
    chosen = [row.case.jobs[0] for row in rows]
    if as_json:
        documents = [
            {
                "schedule": row.schedule,
                "label": row.case.label,
                "predicted_s": row.predicted_s,
                "predicted_p95_s": row.predicted_p95_s,
                "bubble_predicted": row.bubble_predicted,
                "peak_in_flight_predicted": row.peak_in_flight_predicted,
                "speedup_predicted": row.speedup_predicted,
                "solver": made.proof and made.proof._asdict(),
                "remarks": list(made.remarks),
                **row.ends,
                "full_scale": at_full_scale.get(row.case.label),
            }
            for made, row in zip(chosen, rows, strict=True)
        ]
        every = [*warned, *scale_warnings(plan)]
        facts = {"topology": plan.network.name, "workload": plan.jobs[0].name, "warnings": every}
        goodput = {"goodput": foretold} if (foretold := foretold_goodput(plan)) else {}
        more = {**_of_events(spans), **goodput, "left_out": dict(plan.left_out)}
        options.emit({**facts, "schedules": documents, **more})
        return
    console = options.stdout_console(80)
    options.show(
        console,
        plan_tables.plan_table(plan),
        *plan_tables.prediction_tables(plan, rows, console.width),
        *full_scale_tables(list(at_full_scale.items()), console.width),
        *(
            plan_tables.proof_line(row.case.label, one.proof)
            for row, one in zip(rows, chosen, strict=True)
            if one.proof
        ),
    )
    plan_tables.print_remarks(console, plan)


def _show_several(
    plan: Plan, rows: Sequence[PredictedRow], spans: Sequence[_Span], warned: Sequence[str], *, as_json: bool
) -> None:
    from testbed.cli import plan_tables

    by_case = grouped((row.case.label, row) for row in rows)
    if as_json:
        documents = [{"label": label, "jobs": [_document(row) for row in jobs]} for label, jobs in by_case.items()]
        names = [job.name for job in plan.jobs]
        facts = {"topology": plan.network.name, "workloads": names, "warnings": list(warned)}
        options.emit({**facts, "cases": documents, **_of_events(spans), "left_out": dict(plan.left_out)})
        return
    console = options.stdout_console(80)
    options.show(console, plan_tables.plan_table(plan), _jobs_table(plan, by_case))
    plan_tables.print_remarks(console, plan)


def _of_events(spans: Sequence[_Span]) -> dict[str, Any]:
    """Only where links change."""
    return {"iterations": list(spans)} if spans else {}


def _document(row: PredictedRow) -> dict[str, Any]:
    """A job in a case: the keys of comparison.json with what is predicted alone, and the same beside the others."""
    chosen = row.case.jobs[row.number]
    return {
        "job": row.job,
        "schedule": row.schedule,
        "label": chosen.choice.label,
        "predicted_alone_s": row.predicted_alone_s,
        "predicted_s": row.predicted_s,
        "predicted_p95_s": row.predicted_p95_s,
        "slowdown_predicted": row.slowdown_predicted,
        "bubble_alone_predicted": row.bubble_alone_predicted,
        "bubble_predicted": row.bubble_predicted,
        "peak_in_flight_predicted": row.peak_in_flight_predicted,
        "solver": chosen.proof and chosen.proof._asdict(),
        "remarks": list(chosen.remarks),
        **row.ends,
    }


def _jobs_table(plan: Plan, by_case: Mapping[str, Sequence[PredictedRow]]) -> Table:
    from testbed.units import show_change, show_times

    names = ", ".join(job.name for job in plan.jobs)
    freely = ", means of iterations that run freely" if plan.rounds == "free" else ""
    table = Table(title=f"{names} on {plan.network.name}: predicted{freely}", title_justify="left")
    for column in ("case", "job"):
        table.add_column(column, overflow="fold")
    every = [row for rows in by_case.values() for row in rows]
    p95 = any(row.predicted_p95_s is not None for row in every)
    for column in ("alone", "together", *(["p95"] if p95 else []), "slower by", "bubble"):
        table.add_column(column, justify="right", no_wrap=True)
    times = [*(row.predicted_alone_s for row in every), *(row.predicted_s for row in every)]
    shown = show_ranges(times, [*(None for _ in every), *(row.predicted_range for row in every)])
    pairs = zip(shown[: len(every)], shown[len(every) :], strict=True)
    ends = iter(show_times([row.predicted_p95_s for row in every]))
    for label, rows in by_case.items():
        for number, row in enumerate(rows):
            table.add_row(
                "" if number else label,
                row.job,
                *next(pairs),
                *([next(ends)] if p95 else []),
                show_change(row.slowdown_predicted - 1),
                f"{row.bubble_predicted:z.1%}",
                end_section=number == len(rows) - 1,
            )
    return table
