"""`testbed tune`: microbatch size, sequence length and dN that make GeoPipe fastest at constant tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from testbed.cli import options
from testbed.cli.range_cells import show_ranges

if TYPE_CHECKING:
    from testbed.sweep.tune import Evolved, PredictedSetting, Setting, Space


def tune(
    workload: options.WorkloadFile,
    topology: Annotated[
        Path,
        typer.Argument(
            metavar="TOPOLOGY",
            help="A file, or a preset's name such as two-dc-metro; either may come first.",
            autocompletion=options.topology_names,
        ),
    ],
    microbatch_size: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=4096, metavar="N", help="To try (repeatable); default: the workload's, up to 8 x and 1/8."
        ),
    ] = None,
    sequence: Annotated[
        list[int] | None,
        typer.Option(min=2, metavar="N", help="To try (repeatable); default: the workload's, its half and its double."),
    ] = None,
    fixed: Annotated[
        str, typer.Option(metavar="TIME", help="What every slot takes whatever its microbatch, such as '1 ms'.")
    ] = "0 s",
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the genetic heuristic.")] = 1,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Find the fastest microbatch size, sequence length and dN of GeoPipe under the memory limit. Needs no root.

    Tokens per iteration stay as they are. Slots grow with FLOP, messages and activations with the tokens of a
    microbatch. The event model judges every point of the grid; beside it stands what a genetic heuristic
    like the paper's finds, and with how many evaluations.
    """
    from testbed.cli.notices import said_by_the_library
    from testbed.cli.progress import Terminal
    from testbed.planning.left_out import of_changes
    from testbed.planning.noise import of_slots
    from testbed.planning.resolve import load_files
    from testbed.sweep import tune as tuning
    from testbed.sweep.reshape import shape_of
    from testbed.units import TIME

    topology, workload = _in_order(topology, workload)
    network, (job,) = load_files(topology, workload, settings=settings or [])
    fixed_s = options.quantity("--fixed", fixed, TIME, "a time")
    sizes, lengths = tuning.around(shape_of(job))
    grid = tuning.space(network, job, sorted({*(microbatch_size or sizes)}), sorted({*(sequence or lengths)}), fixed_s)
    points, reporter, warned = len([*grid.points()]), Terminal(quiet=quiet), [*of_changes(network), *of_slots([job])]
    for line in options.warnings(warned):
        reporter.say(line)
    with said_by_the_library(reporter.say), reporter.step(f"judging {points} points", points) as step:
        judged = tuning.exhaustive(grid, step.advance)
    with reporter.step("the same by a genetic heuristic"):
        evolved = tuning.genetic(grid, seed)
    if as_json:
        facts = {"topology": network.name, "workload": job.name, "warnings": warned}
        options.emit({**facts, **_document(grid, judged, evolved)})
    else:
        _show(grid, judged, evolved, f"{job.name} on {network.name}: {grid.tokens} tokens per iteration")


def _show(grid: Space, judged: Sequence[PredictedSetting], evolved: Evolved, title: str) -> None:
    console = options.stdout_console(100)
    options.show(console, *_tables(grid, judged, title, console.width), *_lines(grid, judged, evolved))


def _in_order(topology: Path, workload: Path) -> tuple[Path, Path]:
    """The two files, whichever was named first: a topology is what has datacenters."""
    from testbed.spec.document import read_yaml

    return (workload, topology) if "datacenters" in read_yaml(workload) else (topology, workload)


def _best_by_shape(judged: Sequence[PredictedSetting]) -> list[PredictedSetting]:
    found: dict[Any, PredictedSetting] = {}
    for setting in judged:
        found.setdefault(setting.point.shape, setting)
    return list(found.values())


def _extra(point: Setting) -> str:
    return "+".join(map(str, point.extra)) or "no cut"


def _given(grid: Space) -> PredictedSetting | None:
    """1F1B with the workload's own microbatches, where that was tried."""
    from testbed.sweep.tune import Setting

    tried = grid.shapes.get(grid.given)
    return grid.judge(Setting(grid.given, (0,) * len(tried.cuts))) if tried is not None else None


def _tables(grid: Space, judged: Sequence[PredictedSetting], title: str, width: int) -> list[Table]:
    from testbed.cli.table_layout import Column, Section, fitted
    from testbed.units import show_change

    rows, given = _best_by_shape(judged), _given(grid)
    sequences = [
        f"{setting.point.shape.sequence}{'' if setting.point.shape.sequence == grid.given.sequence else ' *'}"
        for setting in rows
    ]
    problems = [grid.shapes[setting.point.shape].problem for setting in rows]
    held = ["{:g} / {:.4g}".format(*grid.nearest_limit(setting.point)) for setting in rows]
    columns = [
        Column("\nsequence", sequences, left=True),
        Column("micro-\nbatches", [str(problem.n_microbatches) for problem in problems]),
        Column("dN by\ncut", [_extra(setting.point) for setting in rows]),
        Column(
            "\niteration",
            show_ranges([setting.seconds for setting in rows], [setting.predicted_range for setting in rows]),
        ),
        Column(
            "over 1F1B\nas given",
            ["-" if given is None else show_change(setting.worst_s / given.worst_s - 1) for setting in rows],
        ),
        Column("in flight\n/ memory", held),
    ]
    key = Column("\nmicrobatch", [str(setting.point.shape.microbatch_size) for setting in rows], left=True)
    return fitted(key, [Section(title, columns)], width)


def _lines(grid: Space, judged: Sequence[PredictedSetting], evolved: Evolved) -> list[str]:
    from testbed.sweep.reshape import efficiency_remark
    from testbed.sweep.tune import altered
    from testbed.units import show_change

    best, given = judged[0], _given(grid)
    same = next((setting for setting in judged if setting.point.shape.sequence == grid.given.sequence), None)

    def words(setting: PredictedSetting) -> str:
        shape = setting.point.shape
        where = f"microbatch {shape.microbatch_size}, sequence {shape.sequence}, dN {_extra(setting.point)}"
        return f"{where}: {show_ranges([setting.seconds], [setting.predicted_range])[0]}"

    lines = [
        f"* {text}"
        for length in sorted({shape.sequence for shape in grid.shapes})
        if (text := altered(grid.workload, length))
    ]
    lines += [
        f"left out: microbatch {shape.microbatch_size}, sequence {shape.sequence}: {why}"
        for shape, why in grid.left_out.items()
    ]
    if (remark := efficiency_remark(grid.workload)) is not None:
        lines.append(remark)
    if given is not None:
        lines.append(f"1F1B as given    {words(given)}")
    if same is not None:
        lines.append(f"same sequence    {words(same)}")
    lines.append(f"fastest of all   {words(best)}")
    lines.append(f"genetic          {words(evolved.best)}")
    made = f"{evolved.evaluations} evaluation{'s' * (evolved.evaluations != 1)}"
    gap = show_change(evolved.best.worst_s / best.worst_s - 1, 2)
    lines.append(
        f"the genetic heuristic made {made} (memory allows {len(judged)} points), "
        f"had its best after {evolved.best_after}, and is {gap} from the fastest"
    )
    return lines


def _document(grid: Space, judged: Sequence[PredictedSetting], evolved: Evolved) -> dict[str, Any]:
    from testbed.planning.ties import range_keys
    from testbed.sweep.reshape import efficiency_remark
    from testbed.sweep.tune import altered

    def entry(found: PredictedSetting) -> dict[str, Any]:
        shape, problem = found.point.shape, grid.shapes[found.point.shape].problem
        return {
            "microbatch_size": shape.microbatch_size,
            "sequence": shape.sequence,
            "microbatches": problem.n_microbatches,
            "extra": list(found.point.extra),
            "predicted_s": found.seconds,
            **range_keys(found.predicted_range),
            "peak_in_flight": grid.in_flight(found.point),
            "memory": min(problem.memory_limit),
            "altered": altered(grid.workload, shape.sequence),
        }

    given = _given(grid)
    left_out = [shape._asdict() | {"reason": why} for shape, why in grid.left_out.items()]
    genetic = {"evaluations": evolved.evaluations, "best_after": evolved.best_after, "best": entry(evolved.best)}
    return {
        "tokens": grid.tokens,
        "efficiency_remark": efficiency_remark(grid.workload),
        "given": given and entry(given),
        "points": [entry(found) for found in judged],
        "left_out": left_out,
        "genetic": genetic | {"gap": evolved.best.worst_s / judged[0].worst_s - 1},
    }
