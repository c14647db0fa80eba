"""`testbed schedule`: look at schedules, compare them, and exchange them with torch."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from testbed.cli import options
from testbed.cli.plan import complete
from testbed.errors import BadInput, DoesNotFit
from testbed.files import output, require_writable, write_output

if TYPE_CHECKING:
    from testbed.pipeline.ir import Row
    from testbed.plan.plan import Case, Plan

schedule_app = typer.Typer(help="Look at schedules.", no_args_is_help=True)


@schedule_app.command("show")
def schedule_show(
    topology: options.TopologyFile,
    workloads: options.WorkloadFiles,
    schedule: options.Schedules = None,
    settings: options.Settings = None,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=options.drawable, help="Also draw the predicted timelines into this file."
        ),
    ] = None,
    order: Annotated[bool, typer.Option("--order", help="Print every rank's actions instead of a timeline.")] = False,
    strict: options.StrictOption = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the predicted timeline of schedules, in the terminal or as a picture.

    Of several workloads: of all jobs at the same time, as `testbed plan` puts their schedules together.
    """
    from testbed.cli import plan_tables
    from testbed.planning import resolve
    from testbed.planning.left_out import of_changes, of_ties
    from testbed.planning.prediction import predict_together

    unfinished = resolve.load_plan(topology, *workloads, settings=settings or [])
    plan = complete(unfinished, schedule, None, quiet=quiet, strict=strict, sources=workloads)
    lanes = _lanes(plan)
    console = Console()
    panels = [(case, predict_together(plan, case)) for case in plan.cases]
    if as_json:
        options.emit(_rows_document(plan))
    for case, timeline in panels if not as_json else ():
        console.print(f"\n[bold]{case.label}[/bold]")
        if order:
            for lane, row in zip(lanes.values(), _rows(plan, case), strict=True):
                console.print(_order(lane, row, console.width), highlight=False, soft_wrap=True)
        else:
            console.print(plan_tables.grid(timeline, list(lanes.values()), console.width), soft_wrap=True)
    if not as_json:
        plan_tables.print_remarks(console, plan)
        options.show(console, *options.warnings([*of_changes(plan), *of_ties(plan)]))
    if svg is not None:
        from testbed.results.timeline_picture import Panel, draw

        names = [job.name for job in plan.jobs]
        heading = f"{', '.join(names)} on {plan.network.name}"
        several = names if len(names) > 1 else ()
        drawn = [Panel(case.label, [("predicted", timeline)], several) for case, timeline in panels]
        with output(svg, "--svg") as partial:
            draw(drawn, partial, cuts=_cuts(plan), lanes=list(lanes.values()), heading=heading)


def _lanes(plan: Plan) -> dict[int, str]:
    """Per rank shown, its label: of a single job those of the first replica, of several jobs every rank."""
    from testbed.plan.routes import nodes_of_ranks

    job, *others = plan.jobs
    shown = job.mesh.ranks_of(0) if not others else range(plan.jobs[-1].mesh.ranks.stop)
    nodes = nodes_of_ranks(plan)
    return {rank: f"{rank} {nodes[rank]}" for rank in shown}


def _rows(plan: Plan, case: Case) -> list[Row]:
    """The actions of every rank shown."""
    rows: list[Row] = []
    for job, chosen in zip(plan.jobs, case.jobs, strict=True):
        replicas = job.mesh.dp if len(plan.jobs) > 1 else 1
        rows += [row for row in chosen.rows or () for _ in range(job.mesh.tp)] * replicas
    return rows


def _order(lane: str, row: Row, width: int) -> str:
    """A rank's actions in lines that fit, under each other."""
    behind = " " * len(f"{lane}: ")
    return textwrap.fill(f"{lane}: {' '.join(map(str, row))}", width, subsequent_indent=behind)


def _rows_document(plan: Plan) -> dict[str, Any]:
    written = {
        case.label: {
            job.name: [list(map(str, row)) for row in chosen.rows or ()]
            for job, chosen in zip(plan.jobs, case.jobs, strict=True)
        }
        for case in plan.cases
    }
    if len(plan.jobs) > 1:
        return {"cases": written}
    return {"schedules": {label: rows[plan.jobs[0].name] for label, rows in written.items()}}


def _cuts(plan: Plan) -> list[int]:
    """Ranks whose successor in their pipeline is in another datacenter."""
    from testbed.planning import resolve

    return [
        job.mesh.tensor_ranks(replica, rank)[-1]
        for job in plan.jobs
        for replica in range(job.mesh.dp if len(plan.jobs) > 1 else 1)
        for rank in resolve.cuts(job)
    ]


@schedule_app.command("compare")
def schedule_compare(
    topology: options.TopologyFile,
    workload: options.WorkloadFile,
    schedule: options.Schedules = None,
    settings: options.Settings = None,
    noise: Annotated[
        int, typer.Option(metavar="N", min=0, max=10_000, help="Also over N draws of slots that vary, 200 for example.")
    ] = 0,
    strict: options.StrictOption = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Every schedule beside each other: time, bubble by cause, memory, distance from a lower bound. No root.

    Of slots that vary these are with their medians; --noise has median, 95th percentile and worst regret over draws
    that are the same for every schedule: the most that it takes longer than the fastest one in any draw.
    """
    from testbed.cli import plan_tables
    from testbed.cli.full_scale_tables import full_scale_tables
    from testbed.cli.progress import Terminal
    from testbed.full_scale.similitude import scale_warnings
    from testbed.planning import resolve, schedules
    from testbed.planning.left_out import of_changes
    from testbed.planning.noise import AS_THEY_ARE, of_slots
    from testbed.planning.schedule_comparison import compare_schedules

    plan = resolve.load_plan(topology, workload, settings=settings or [])
    slots = of_slots([job.workload for job in plan.jobs], AS_THEY_ARE, "--noise 200 has those of draws")
    reporter, warned = Terminal(quiet=quiet), [*scale_warnings(plan), *of_changes(plan), *(slots if not noise else [])]
    for line in options.warnings(warned):
        reporter.say(line)
    with reporter.solving() as watch:
        choices = schedules.choose(plan, schedule) if schedule else schedules.quick_choices(plan)
        comparison = compare_schedules(plan, choices, watch, source=str(workload), strict=strict, noise=noise)
    if as_json:
        rows = [row.as_json() for row in comparison.schedules]
        drawn = {"draws": noise, "schedules": [row._asdict() for row in comparison.noisy]} if noise else None
        options.emit({"schedules": rows, "noise": drawn, "left_out": comparison.left_out, "warnings": warned})
        return
    console = options.stdout_console(150)
    result, *causes = plan_tables.causes_tables(plan, comparison, console.width)
    at_full_scale = [(row.label, row.full_scale.as_json()) for row in comparison.schedules if row.full_scale]
    said: list[str] = []
    for row in comparison.schedules:
        said += [plan_tables.proof_line(row.label, row.proof)] if row.proof else []
        said += [f"{row.label}: {remark}" for remark in row.remarks]
    said += [f"left out: {reason}" for reason in comparison.left_out.values()]
    options.show(console, *causes, *full_scale_tables(at_full_scale, console.width), *said)
    answers = [plan_tables.best_line(comparison), plan_tables.robust_line(comparison.noisy)]
    noisy = plan_tables.noise_tables(comparison.noisy, noise, console.width)
    options.show(console, result, *noisy, *filter(None, answers))  # last: it stays on a screen


@schedule_app.command("export")
def schedule_export(
    topology: options.TopologyFile,
    workload: options.WorkloadFile,
    schedule: Annotated[list[str], typer.Option("--schedule", metavar="NAME", help="The schedule to write.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write; default: stdout.")] = None,
    comms: Annotated[
        bool, typer.Option("--comms", help="compute_comms (with SEND and RECV) for compute_only.")
    ] = False,
    waits: Annotated[
        bool, typer.Option("--waits", help="compute_comms with WAIT as well, as torch 2.15 reads it.")
    ] = False,
    settings: options.Settings = None,
    quiet: options.Quiet = False,
) -> None:
    """Write a schedule in torch.distributed.pipelining's CSV, for its runtime or torchtitan."""
    from testbed.cli.progress import Terminal
    from testbed.pipeline.torch_csv import Form, to_csv, whole_blocks
    from testbed.planning import resolve, schedules

    if out is not None:
        require_writable(out, "--out")
    name, *more = dict.fromkeys(schedule)
    if more:
        raise BadInput.of("--schedule", "option", more[0], f"one, which is written ({name})")
    plan = resolve.load_plan(topology, workload, settings=settings or [])
    choices = schedules.choose(plan, [name])
    if len(choices) > 1:
        raise BadInput.of("--schedule", "label", name, f"one of {', '.join(choice.label for choice in choices)}")
    reporter = Terminal(quiet=quiet)
    with reporter.solving() as watch:
        selected = schedules.make(plan, choices, None, watch, source=str(workload))
    if not selected.made:
        raise BadInput.of(str(workload), "pacing", "none", "times for F, I and W: without them only a run can make it")
    (generated,) = selected.made.values()
    if whole_blocks(generated.schedule).rows != generated.schedule.rows:
        said = "sub-blocks, which torch does not know, are written as whole blocks: another time, and maybe more memory"
        for line in options.warnings([f"{said} (testbed schedule validate)"]):
            reporter.say(line)
    form = Form.COMMS_AND_WAITS if waits else Form.COMMS if comms else Form.COMPUTE_ONLY
    text = to_csv(generated.schedule, form)
    if out is None:
        sys.stdout.write(text)
    else:
        write_output(out, text, "--out")


@schedule_app.command("validate")
def schedule_validate(
    topology: options.TopologyFile,
    workload: options.WorkloadFile,
    csv: Annotated[Path, typer.Argument(metavar="CSV", help="A schedule in torch's CSV, a row per rank.")],
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> None:
    """Check a schedule in torch's CSV against a plan, and say what it would take."""
    from testbed.pipeline.memory import peak_in_flight
    from testbed.pipeline.torch_csv import from_csv
    from testbed.pipeline.validate import InvalidSchedule, validate
    from testbed.plan import costs
    from testbed.planning import resolve
    from testbed.planning.prediction import predict_jobs
    from testbed.planning.schedules import with_order

    plan = resolve.load_plan(topology, workload, settings=settings or [])
    text = options.read_text(csv)
    loaded = from_csv(text, csv.stem)
    try:
        problem = costs.problem_for(plan, loaded)
        validate(loaded, problem)
    except DoesNotFit as error:
        raise DoesNotFit(f"{csv}: {error}") from error
    except InvalidSchedule as error:
        raise error.within(str(csv)) from error
    plan = with_order(plan, loaded, text)
    (predicted,) = predict_jobs(plan, plan.cases[0])
    seconds = predicted.together_s
    if as_json:
        options.emit({"file": str(csv), "predicted_s": seconds, "peak_in_flight_by_rank": list(peak_in_flight(loaded))})
    else:
        print(f"{csv}: valid; the model says {seconds * 1e3:.3f} ms per iteration")
