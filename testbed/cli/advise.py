"""`testbed advise`: how to run a job on a network, and what would help it most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed import extras
from testbed.cli import options
from testbed.errors import ExitCode

if TYPE_CHECKING:
    from testbed.cli.advice_tables import Answer
    from testbed.progress import Reporter
    from testbed.spec.topology import Topology
    from testbed.spec.workload import Workload
    from testbed.sweep.advise import Grid

_LIMIT = "300 s"


def advise(
    topology: options.TopologyFile,
    workload: options.WorkloadFile,
    schedule: options.Schedules = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PxTxD",
            help="Degrees of pipeline, tensor and data parallelism to try, such as 8x8x2, or 4x8x4/data for whole "
            "pipelines in each datacenter (repeatable); default: the workload's and those near it.",
        ),
    ] = None,
    microbatch_size: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=4096, metavar="N", help="To try (repeatable); default: the workload's, its half, 2 x and 4 x."
        ),
    ] = None,
    memory_limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|SIZE",
            help="To try: microbatches in flight of the workload's own size, or HBM such as '80 GB' (repeatable); "
            "default: as the workload says, else what HBM holds.",
        ),
    ] = None,
    policy: options.Policies = None,
    top: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many to show, the best first.")] = 10,
    limit: Annotated[
        str, typer.Option(metavar="TIME", help="For the search; what is not tried by then is said.")
    ] = _LIMIT,
    confirm: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="Train the N best on the virtual clock.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the confirming runs in this new directory.")
    ] = None,
    wall_limit: options.WallLimitOfPlans = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """How to train a job on a network: schedule, microbatch, memory, parallel axes and routes, the best first.

    Everything has as many accelerators and tokens per iteration as the workload. Times are those of full scale where
    the workload has full_scale, else of the lab. Beside them stands one datacenter with as many accelerators, and what
    a better link or more memory would do for the best. Predicted; --confirm N trains the N best as `testbed run` does.
    """
    from testbed.cli.progress import Terminal
    from testbed.planning.resolve import load_files
    from testbed.units import TIME

    limit_s = options.quantity("--limit", limit, TIME, "a time")
    options.only_beside_measure(confirm, {"--out": out and str(out), "--wall-limit": wall_limit}, "--confirm")
    _require_confirmable(confirm, out)
    network, (job,) = load_files(topology, workload, settings=settings or [])
    shapes = (axes or (), microbatch_size or (), memory_limit or ())
    grid, reporter = _grid(network, job, shapes, schedule or (), policy or ()), Terminal(quiet=quiet)
    answer = _advised(network, job, grid, max(top, confirm), limit_s, reporter)
    _show(_confirmed(answer, confirm, out, wall_limit, reporter) if confirm else answer, as_json=as_json)


def _require_confirmable(confirm: int, out: Path | None) -> None:
    """Raises MachineLacks without what a run needs, BadInput for an unfit place: before anything is predicted."""
    from testbed.results.destination import require_place

    if confirm:
        extras.require("train")
    if out is not None:
        require_place(out, overwrite=None)


def _grid(
    network: Topology,
    job: Workload,
    shapes: tuple[Sequence[str], Sequence[int], Sequence[str]],
    schedules: Sequence[str],
    policies: Sequence[str],
) -> Grid:
    """What is tried; `shapes` are axes, sizes of microbatches and limits of memory, as they were given."""
    from testbed.routing.policies import choose
    from testbed.sweep.accelerator_split import parse, split_of
    from testbed.sweep.advise import grid_of
    from testbed.sweep.variant import memory_limit

    axes, sizes, memories = shapes
    return grid_of(
        network,
        job,
        splits=[parse(text, split_of(job)) for text in axes],
        sizes=sizes,
        memories=[memory_limit(text) for text in memories],
        schedules=schedules,
        policies=[choose(text) for text in policies],
    )


def _advised(network: Topology, job: Workload, grid: Grid, top: int, limit_s: float, reporter: Reporter) -> Answer:
    """All that is predicted."""
    from testbed.cli.advice_tables import Answer
    from testbed.full_scale.similitude import scale_warnings
    from testbed.planning.left_out import of_changes
    from testbed.sweep.advise import advise as search
    from testbed.sweep.elasticity import elasticities

    variants = len(grid.variants())
    with reporter.solving() as watch:
        with reporter.step(f"planning and predicting {variants} variants", 2 * variants) as step:
            advice = search(network, job, grid, top=top, limit_s=limit_s, watch=watch, tell=step.advance)
        best = advice.found.forecasts[0]
        with reporter.step("what would help most", 2 * len(network.links) + 1) as step:
            helping = elasticities(network, job, best, watch, step.advance, limit_s=limit_s)
    warned = [*scale_warnings(best.plan), *of_changes(network)]
    return Answer(network, job, grid, advice, top, helping, (), warned)


def _confirmed(answer: Answer, count: int, out: Path | None, wall_limit: float | None, reporter: Reporter) -> Answer:
    """With entries of comparison.json, of so many of the best in their order."""
    from testbed.sweep.measured_plans import measure_plans

    plans = {f"best-{number:02d}": one.plan for number, one in enumerate(answer.advice.found.forecasts[:count], 1)}
    measured = measure_plans(
        plans, out, what="candidate", limit_s=wall_limit or options.PLANS_LIMIT_S, reporter=reporter
    )
    return answer._replace(measured=[rows[0] for rows in measured])


def _show(answer: Answer, *, as_json: bool) -> None:
    from testbed.cli.advice_tables import document, show_answer

    if as_json:
        options.emit(document(answer))
    else:
        show_answer(answer)
    if not all(row["trusted"] for row in answer.measured):
        raise typer.Exit(ExitCode.UNTRUSTED)
