"""`testbed study` and `testbed sweep`: a grid of plans measured or predicted, drawn, and its claims judged."""

from __future__ import annotations

import math
import os
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from testbed import extras
from testbed.cli import options
from testbed.errors import BadInput, ExitCode
from testbed.grouping import grouped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from testbed.progress import Reporter
    from testbed.spec.study import StudySpec
    from testbed.study.axis_plots import Drawn
    from testbed.study.cells import StudyCell
    from testbed.study.outcomes import CellOutcome
    from testbed.study.study_run import Finished


_RESULTS = Path("results", "studies")
_MOST_ROWS = 40
"""Of the table on screen: all are in study.csv."""


class _Options(NamedTuple):
    """What is asked of either command beside the grid: its fields are the options that both have."""

    list_only: Annotated[
        bool, typer.Option("--list", help="Print the cells, with commands where a file has the grid; measure none.")
    ] = False
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help=f"Where cells and tables go, now and next time; default: {_RESULTS}/NAME."),
    ] = None
    at_once: Annotated[
        int | None,
        typer.Option("--jobs", min=1, max=256, metavar="N", help="Guests at once; default: one per processor."),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="A Ray cluster measures the cells; auto: the one of this machine (testbed[ray]).",
        ),
    ] = None
    shaper: options.ShaperOption = options.AUTO_SHAPER
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="study: a field of the file, such as clock=none; sweep: one of the workload, or topology.x.",
        ),
    ] = None
    as_json: options.AsJson = False
    quiet: options.Quiet = False


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with the options of `_Options` behind its own; it gets them as `how`."""

    @wraps(command)
    def whole(**given: Any) -> None:
        how = _Options(**{name: given.pop(name) for name in _Options._fields})
        command(**given, how=how)

    own = [each for each in signature(command, eval_str=True).parameters.values() if each.name != "how"]
    shared = get_type_hints(_Options, include_extras=True)
    keywords = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in own] + [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_Options._field_defaults[name], annotation=kind)
        for name, kind in shared.items()
    ]
    vars(whole)["__signature__"] = Signature(keywords)
    whole.__annotations__ = {each.name: each.annotation for each in keywords}
    return whole


@_with_options
def study(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY", help="A file, or a preset's name such as smoke.", autocompletion=options.study_names
        ),
    ],
    *,
    cell: Annotated[
        list[str] | None,
        typer.Option("--cell", metavar="N|N-M", help="Only these cells, by number as --list has them (repeatable)."),
    ] = None,
    how: _Options,
) -> None:
    """Measure a grid of plans, draw it, and judge what is claimed of it.

    Cells that lie in the directory of an earlier try are not measured again, as long as plan and code are the same:
    what was interrupted goes on. Several commands may share the directory. Writes study.parquet and study.csv (a row
    for every cell, schedule and job), and a picture for every axis; with --cell neither. --set overrides fields of the
    study: --set clock=none only predicts.
    """
    from testbed.planning.resolve import overrides_of_one
    from testbed.spec.study import OWN_FIELD, study_of

    _take(study_of(file, overrides_of_one(how.settings or [], OWN_FIELD)), file, how, cell or ())


@_with_options
def sweep(
    topology: options.TopologyFile,
    workload: options.WorkloadFiles,
    *,
    over: Annotated[
        list[str],
        typer.Option(
            metavar="FIELD=VALUES", help="links.0.delay=1..80ms/12, or microbatches=4,8,16 (repeatable: a grid)."
        ),
    ],
    schedule: options.Schedules = None,
    policy: options.Policies = None,
    iterations: options.Iterations = None,
    light: options.Light = False,
    clock: Annotated[str, typer.Option(metavar="virtual|real|none", help="none: predicted, not measured.")] = "virtual",
    repetitions: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Of every cell, on the virtual clock with seeds 1 to N.")
    ] = 1,
    claim: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What is to hold: '1f1b <= 0.9 * gpipe' (repeatable).")
    ] = None,
    how: _Options,
) -> None:
    """Measure a topology and a workload over values of any field: a study without a file.

    Several workloads are jobs at the same time. Directory and resuming are those of `testbed study`.
    """
    from testbed.planning.resolve import overrides_of
    from testbed.spec import yaml_tree
    from testbed.spec.document import validate
    from testbed.spec.study import StudySpec

    of_workload, of_topology = overrides_of(how.settings or [])
    texts = of_workload | {f"topology.{key}": value for key, value in of_topology.items()}
    document = {
        "name": "sweep",
        "description": f"{', '.join(path.stem for path in workload)} on {topology.stem}",
        "topologies": [str(topology)],
        "workloads": [[str(path) for path in workload]],
        "schedules": schedule or None,
        "policies": policy or [],
        "set": {key: yaml_tree.parse(value, "--set", key) for key, value in texts.items()},
        "over": _axes(over),
        "repetitions": repetitions,
        "clock": clock,
        "iterations": iterations,
        "light": light,
        "claims": claim or [],
    }
    _take(validate(StudySpec, document, "sweep"), Path("sweep"), how, ())


def _axes(over: Sequence[str]) -> dict[str, Any]:
    """The axes of the command line, as a study's file has them. Raises BadInput."""
    from testbed.spec.study import axis_of_text

    axes: dict[str, Any] = {}
    for text in over:
        try:
            field, axis = axis_of_text(text)
        except ValueError as error:
            raise BadInput.of("--over", "option", text, str(error)) from error
        if field in axes:
            raise BadInput.of("--over", "option", text, f"{field} once")
        axes[field] = axis
    return axes


def _take(study: StudySpec, written_in: Path, how: _Options, chosen: Sequence[str]) -> None:
    """Measure the cells that are missing, and show what all of them came to; ends with an exit code."""
    extras.require("report" if study.clock == "none" else "train")
    from testbed.cli.progress import Terminal
    from testbed.interrupts import as_interrupts
    from testbed.study import cells as grid
    from testbed.study import study_run

    if how.ray is not None and study.clock != "virtual":
        raise BadInput.of("--ray", "option", how.ray, "clock: virtual: nodes share their processors")
    directory, reporter = how.out or _RESULTS / study.name, Terminal(quiet=how.quiet)
    in_guests = study.clock == "virtual" and how.shaper == options.AUTO_SHAPER
    shaper = options.NETEM if in_guests else how.shaper
    with reporter.step("reading the grid"):
        every = grid.cells_of(study, written_in, shaper)
    claims = study_run.claims_of(study, every, str(written_in))
    for line in dict.fromkeys(line for cell in every for line in cell.said):
        reporter.say(line)
    only = [every[number] for number in _numbers(chosen, len(every))] if chosen else every
    if how.list_only:
        _list(only, written_in, directory, how)
        return
    whole = len(only) == len(every)
    with as_interrupts(signal.SIGTERM, signal.SIGHUP):  # a guest for each cell: they are ended, and that is said
        done = study_run.run(
            study,
            every,
            claims,
            directory,
            only=None if whole else only,
            shaper=shaper,
            at_once=how.at_once or len(os.sched_getaffinity(0)),
            cluster=how.ray,
            reporter=reporter,
        )
    drawn = _draw(study, done, directory, reporter) if whole else None
    _show(study, done, drawn, directory, as_json=how.as_json)
    raise typer.Exit(exit_code(study, done))


def _numbers(chosen: Sequence[str], count: int) -> list[int]:
    """Cells by number. Raises BadInput."""
    found: dict[int, None] = {}
    for text in chosen:
        first, _, last = text.partition("-")
        ends = [first, last or first]
        if not all(end.isdecimal() and int(end) < count for end in ends) or int(ends[0]) > int(ends[1]):
            raise BadInput.of("--cell", "option", text, f"a number from 0 to {count - 1}, or two as in 0-{count - 1}")
        found |= dict.fromkeys(range(int(ends[0]), int(ends[1]) + 1))
    return list(found)


def _list(cells: Sequence[StudyCell], written_in: Path, directory: Path, how: _Options) -> None:
    from testbed.spec.presets import is_preset
    from testbed.study.cells import described

    if how.as_json:
        options.emit({"cells": [described(cell) for cell in cells]})
        return
    as_asked = [word for setting in how.settings or () for word in ("--set", setting)]
    as_asked += ["--shaper", how.shaper] if how.shaper != options.AUTO_SHAPER else []
    for cell in cells:
        words = ["testbed", "study", str(written_in), "--cell", str(cell.number), *as_asked, "--out", str(directory)]
        comment = f"  # {cell.words()}"
        in_file = written_in.suffix or is_preset(written_in)
        print(f"{shlex.join(words)}{comment}" if in_file else f"{cell.number}{comment}")


def _draw(study: StudySpec, done: Finished, directory: Path, reporter: Reporter) -> list[Drawn]:
    from testbed.study.axis_plots import draw_axes
    from testbed.study.outcomes import table_of

    table = table_of(done.outcomes)
    if table.empty or not study.over:
        return []
    with reporter.step("drawing"):
        return draw_axes(study.over, table, directory, study.description or study.name)


def exit_code(study: StudySpec, done: Finished) -> ExitCode:
    """What the command ends with: a failed claim first, then a cell that failed, then a machine that can measure none,
    then what is not trusted or cannot be measured here.
    """
    from testbed.study.claims import ClaimVerdict

    verdicts = {judged.verdict for judged in done.judged}
    if ClaimVerdict.fails in verdicts:
        return ExitCode.REGRESSION
    cannot_here = [found for found in done.outcomes if found.cannot_here]
    if any(found.failed and not found.does_not_fit and not found.cannot_here for found in done.outcomes):
        return ExitCode.RUN_FAILED
    if cannot_here and not any(found.rows for found in done.outcomes):
        return ExitCode.MACHINE_LACKS
    untrusted = any(row.get("trusted") is False for found in done.outcomes for row in found.rows)
    undecided = ClaimVerdict.undecided in verdicts and study.clock != "none"
    return ExitCode.UNTRUSTED if untrusted or undecided or cannot_here else ExitCode.OK


# --- what is shown -------------------------------------------------------------------------------


def _show(study: StudySpec, done: Finished, drawn: Sequence[Drawn] | None, directory: Path, *, as_json: bool) -> None:
    """`drawn` is None of some of the cells only, of which there are no files."""
    if as_json:
        options.emit(_document(study, done, drawn, directory))
        return
    from rich.padding import Padding
    from rich.text import Text

    console = options.stdout_console(100)
    parts: list[RenderableType] = [*_tables(study, done, console.width)]
    options.show(console, *parts)
    for why, cells in grouped((found.failed, found) for found in done.outcomes if found.failed).items():
        words = "; ".join(found.cell.words() for found in cells)
        style = "" if cells[0].does_not_fit else "yellow" if cells[0].cannot_here else "red"
        console.print(Text(f"no result: {words}: {why}", style=style))
    for why, labels in _left_out(done).items():
        console.print(Text(f"left out: {', '.join(labels)}: {why}"))
    if lacking := _not_modelled(done):
        console.print(Text(lacking, style="yellow"))
    for judged in done.judged:
        style = {"holds": "green", "fails": "bold red"}.get(judged.verdict, "yellow")
        console.print(Text.assemble((f"{judged.verdict:>9}", style), f"  {judged.claim}"))
        console.print(Padding(Text(judged.why, style="dim"), (0, 0, 0, 11), expand=False))
    for picture in drawn or ():
        more = f" ({picture.left_out} more panels in study.csv only)" if picture.left_out else ""
        console.print(f"drawn in {picture.path}{more}", highlight=False, markup=False, soft_wrap=True)
    tables = "are written of the whole study only" if drawn is None else f"in {directory}/study.parquet and study.csv"
    console.print(f"tables {tables}", highlight=False, markup=False, soft_wrap=True)
    console.print(Text(_answer(study, done), style="bold"))


def _left_out(done: Finished) -> dict[str, list[str]]:
    """By reason, the schedules that are not in every cell, and in how many they are not."""
    counts = Counter((why, label) for found in done.outcomes for label, why in found.left_out.items())
    return grouped((why, f"{label} in {count} cells") for (why, label), count in counts.items())


def _not_modelled(done: Finished) -> str:
    """How many predicted cells ask for what the model leaves out; empty where none does."""
    predicted = [found for found in done.outcomes if found.outcome == "predicted"]
    lacking = sum(not all(row["covered"] for row in found.rows) for found in predicted)
    if not lacking:
        return ""
    ask = "cell asks" if lacking == 1 else "cells ask"
    return f"{lacking} {ask} for what predictions leave out (not `covered` in study.csv; `testbed predict` says what)"


def _answer(study: StudySpec, done: Finished) -> str:
    """The last line: cells, trust, claims."""
    got = [found for found in done.outcomes if found.rows]
    rows = [row for found in got for row in found.rows]
    doing = "predicted" if study.clock == "none" else "measured"
    plans = len({found.cell.key for found in done.outcomes})
    twice, earlier = len(done.outcomes) - plans, plans - done.taken
    notes = [f"{earlier} of them before"] * (earlier > 0) + [f"{twice} of them the same plan as another"] * (twice > 0)
    said = f" ({', '.join(notes)})" if notes else ""
    parts = [f"{len(got)} of {len(done.outcomes)} cells {doing}{said}"]
    if study.clock != "none" and rows:
        untrusted = sum(row["trusted"] is False for row in rows)
        parts.append("all trusted" if not untrusted else f"{untrusted} of {len(rows)} rows not trusted")
    if done.judged:
        holding = sum(judged.verdict == "holds" for judged in done.judged)
        parts.append(f"{holding} of {len(done.judged)} claims hold")
    return "; ".join(parts)


def _tables(study: StudySpec, done: Finished, width: int) -> list[RenderableType]:
    """Iteration times: a row per cell, repetitions together, a column per schedule; beside them what is published."""
    from testbed.cli.table_layout import Column, Section, fitted
    from testbed.study.outcomes import table_of, with_missing
    from testbed.units import show_change, show_times

    results = table_of(done.outcomes)
    if results.empty:
        return []
    table = with_missing(results, done.outcomes)
    table["job"] = table["job"].fillna("any job")
    wheres = [name for name in ("topology", "workload") if table[name].nunique() > 1]
    wheres += ["job"] * (results["job"].nunique() > 1)
    wheres += [name for name in study.over if table[name].nunique() > 1]
    table["place"] = table[wheres or ["workload"]].agg(", ".join, axis=1)
    kinds = {"predicted_s": "predicted"} if study.clock == "none" else {"measured_s": "measured"}
    if table["published_s"].notna().any():
        kinds |= {"predicted_s": "predicted", "published_s": "published"}
    sections, keys = list[Section](), list(dict.fromkeys(table["place"]))[:_MOST_ROWS]
    for time, doing in kinds.items():
        grid = table.pivot_table(index="place", columns="label", values=time, aggfunc="median", sort=False)
        grid = grid.reindex(keys)
        labels = [str(label) for label in dict.fromkeys(results["label"]) if label in grid]
        seconds = [None if math.isnan(value) else value for label in labels for value in grid[label]]
        shown, rows = show_times(seconds), len(grid)
        of_kind = f"\n{doing}" if len(kinds) > 1 else ""
        columns = [Column(label + of_kind, shown[at * rows : (at + 1) * rows]) for at, label in enumerate(labels)]
        if time == "measured_s":
            errors = table.groupby("place", sort=False)["error"].agg(["min", "max"]).reindex(keys)
            worst = [max(ends, key=abs) for ends in zip(errors["min"], errors["max"], strict=True)]
            came_to = table.groupby("place", sort=False)["outcome"].first().reindex(keys)
            shown = [
                came if math.isnan(error) else show_change(error, 3) for error, came in zip(worst, came_to, strict=True)
            ]
            columns.append(Column("worst\nerror", shown))
        said = "" if of_kind else f"{doing} "
        heading = f"{study.name}: {said}iteration{', medians' if study.repetitions > 1 else ''}"
        sections.append(Section(heading, columns))
    parts: list[RenderableType] = [*fitted(Column(", ".join(wheres) or "cell", keys), sections, width)]
    if (further := table["place"].nunique() - len(keys)) > 0:
        parts.append(f"{further} more rows in study.csv")
    return parts


def _document(study: StudySpec, done: Finished, drawn: Sequence[Drawn] | None, directory: Path) -> dict[str, Any]:
    from testbed.study.cells import described

    return {
        "study": study.name,
        "clock": study.clock,
        "cells": [_cell(found) | described(found.cell) for found in done.outcomes],
        "taken_now": done.taken,
        "claims": [judged._asdict() for judged in done.judged],
        "pictures": [str(picture.path) for picture in drawn or ()],
        "tables": [] if drawn is None else [str(directory / f"study.{kind}") for kind in ("parquet", "csv")],
    }


def _cell(found: CellOutcome) -> dict[str, Any]:
    return {
        "outcome": found.outcome or None,
        "failed": found.failed or None,
        "left_out": dict(found.left_out),
        "order_as_predicted": found.order_as_predicted,
        "schedules": [
            {name: row.get(name) for name in ("label", "job", "measured_s", "predicted_s", "error", "trusted")}
            | {"published_s": found.cell.published.get(row["label"])}
            for row in found.rows
        ],
    }
