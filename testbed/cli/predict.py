"""`testbed predict`: the iteration time of every schedule by the model alone."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from testbed.cli import options
from testbed.cli.plan import plan_of
from testbed.cli.range_cells import range_keys, show_ranges

if TYPE_CHECKING:
    from testbed.plan.plan import Case, Plan
    from testbed.planning.prediction import JobPrediction
    from testbed.planning.ties import Range


def predict(
    what: options.TopologyOrPlan,
    workloads: options.MoreWorkloads = None,
    schedule: options.Schedules = None,
    settings: options.Settings = None,
    strict: options.StrictOption = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict the iteration time of every schedule. Needs no root, starts no containers.

    Of several workloads: every job alone, and beside the others on the links that they share (an iteration of each,
    from one common start). Their schedules meet one by one, as `testbed plan --help` says.
    """
    gc.set_threshold(50_000)  # the imports below leave no garbage, as those before
    from testbed.planning.left_out import warnings
    from testbed.planning.prediction import predict_jobs, ranges_of_plan

    plan = plan_of(what, workloads, schedule, settings, quiet=quiet, strict=strict)
    predicted = [(case, predict_jobs(plan, case)) for case in plan.cases]
    ranges = ranges_of_plan(plan)
    warned = warnings(plan, ranges)
    if len(plan.jobs) == 1:
        of_cases = [ranges[case.label][0] for case, _ in predicted]
        _show_one(plan, [(case, jobs[0]) for case, jobs in predicted], of_cases, warned, as_json=as_json)
    else:
        _show_several(plan, predicted, ranges, warned, as_json=as_json)
    if not as_json:
        options.show(options.stdout_console(80), *options.warnings(warned))


def _show_one(
    plan: Plan,
    predicted: Sequence[tuple[Case, JobPrediction]],
    ranges: Sequence[Range | None],
    warned: Sequence[str],
    *,
    as_json: bool,
) -> None:
    from testbed.cli import plan_tables
    from testbed.cli.full_scale_tables import full_scale_tables
    from testbed.full_scale.similitude import scale_warnings
    from testbed.full_scale.similitude_bound import full_scale_times
    from testbed.pipeline.memory import peak_in_flight

    at_full_scale = full_scale_times(plan)
    baseline = next(
        (prediction.alone_s for case, prediction in predicted if case.jobs[0].choice.schedule == "1f1b"), None
    )
    rows = [
        (
            case.label,
            prediction.alone_s,
            prediction.bubble_alone,
            max(peak_in_flight(prediction.schedule)),
            baseline / prediction.alone_s if baseline else None,
        )
        for case, prediction in predicted
    ]
    chosen = [case.jobs[0] for case, _ in predicted]
    if as_json:
        keys = ("label", "predicted_s", "bubble_predicted", "peak_in_flight_predicted", "speedup_predicted")
        documents = [
            {"schedule": prediction.choice.schedule}
            | dict(zip(keys, row, strict=True))
            | {"solver": prediction.proof and prediction.proof._asdict(), "remarks": list(prediction.remarks)}
            | range_keys(predicted_range)
            | {"full_scale": at_full_scale.get(row[0])}
            for prediction, row, predicted_range in zip(chosen, rows, ranges, strict=True)
        ]
        every = [*warned, *scale_warnings(plan)]
        facts = {"topology": plan.network.name, "workload": plan.jobs[0].name, "warnings": every}
        options.emit({**facts, "schedules": documents, "left_out": dict(plan.left_out)})
        return
    console = options.stdout_console(80)
    options.show(
        console,
        plan_tables.plan_table(plan),
        *plan_tables.prediction_tables(plan, rows, ranges, console.width),
        *full_scale_tables(list(at_full_scale.items()), console.width),
        *(plan_tables.proof_line(row[0], one.proof) for row, one in zip(rows, chosen, strict=True) if one.proof),
    )
    plan_tables.print_remarks(console, plan)


def _show_several(
    plan: Plan,
    predicted: Sequence[tuple[Case, list[JobPrediction]]],
    ranges: Mapping[str, Sequence[Range | None]],
    warned: Sequence[str],
    *,
    as_json: bool,
) -> None:
    from testbed.cli import plan_tables

    documents = [
        {
            "label": case.label,
            "jobs": [
                _document(case, prediction) | range_keys(predicted_range)
                for prediction, predicted_range in zip(jobs, ranges[case.label], strict=True)
            ],
        }
        for case, jobs in predicted
    ]
    if as_json:
        names = [job.name for job in plan.jobs]
        facts = {"topology": plan.network.name, "workloads": names, "warnings": list(warned)}
        options.emit({**facts, "cases": documents, "left_out": dict(plan.left_out)})
        return
    console = options.stdout_console(80)
    of_jobs = [each for case, _ in predicted for each in ranges[case.label]]
    options.show(console, plan_tables.plan_table(plan), _jobs_table(plan, documents, of_jobs))
    plan_tables.print_remarks(console, plan)


def _document(case: Case, prediction: JobPrediction) -> dict[str, Any]:
    """A job in a case: the keys of comparison.json with what is predicted alone, and the same beside the others."""
    from testbed.pipeline.memory import peak_in_flight

    chosen = case.jobs[prediction.number]
    return {
        "job": prediction.job.name,
        "schedule": chosen.choice.schedule,
        "label": chosen.choice.label,
        "predicted_alone_s": prediction.alone_s,
        "predicted_s": prediction.together_s,
        "slowdown_predicted": prediction.together_s / prediction.alone_s,
        "bubble_alone_predicted": prediction.bubble_alone,
        "bubble_predicted": prediction.bubble_together,
        "peak_in_flight_predicted": max(peak_in_flight(prediction.schedule)),
        "solver": chosen.proof and chosen.proof._asdict(),
        "remarks": list(chosen.remarks),
    }


def _jobs_table(plan: Plan, cases: Sequence[Mapping[str, Any]], ranges: Sequence[Range | None]) -> Table:
    """`ranges` as the jobs of the cases follow each other."""
    from testbed.units import show_change

    names = ", ".join(job.name for job in plan.jobs)
    table = Table(title=f"{names} on {plan.network.name}: predicted", title_justify="left")
    for column in ("case", "job"):
        table.add_column(column, overflow="fold")
    for column in ("alone", "together", "slower by", "bubble"):
        table.add_column(column, justify="right", no_wrap=True)
    jobs = [job for case in cases for job in case["jobs"]]
    times = [job[key] for key in ("predicted_alone_s", "predicted_s") for job in jobs]
    shown = show_ranges(times, [*(None for _ in jobs), *ranges])
    pairs = zip(shown[: len(jobs)], shown[len(jobs) :], strict=True)
    for case in cases:
        for number, job in enumerate(case["jobs"]):
            table.add_row(
                "" if number else case["label"],
                job["job"],
                *next(pairs),
                show_change(job["slowdown_predicted"] - 1),
                f"{job['bubble_predicted']:z.1%}",
                end_section=number == len(case["jobs"]) - 1,
            )
    return table
