"""`testbed report`: a run's answer from its files, or its details; its picture again, its verdict judged again; and
several runs as one web page."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed import extras
from testbed.cli.options import AsJson, drawable, emit, show, stdout_console
from testbed.errors import BadInput, ExitCode
from testbed.files import note_input, output, require_writable
from testbed.units import show_size

if TYPE_CHECKING:
    from testbed.cli.run_tables import ReportPart
    from testbed.results.load import Run


_Directories = Annotated[
    list[Path], typer.Argument(metavar="DIR", help="The results of a run, complete or not; with --html of several.")
]
_Svg = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=drawable,
        help="Draw the picture into this file; default: DIR/timeline.svg where it is missing.",
    ),
]
_Html = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=drawable,
        help="Write all of it as one web page that needs no network, with timelines to zoom into.",
    ),
]
_Trace = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write every action and message of the measured iterations, predicted beside measured, as a trace for "
        "Perfetto (ui.perfetto.dev).",
    ),
]
_Recheck = Annotated[
    bool,
    typer.Option("--recheck", help="Judge again from the data files; exit code 5 where a check fails."),
]


def report(
    directories: _Directories,
    svg: _Svg = None,
    html: _Html = None,
    trace: _Trace = None,
    recheck: _Recheck = False,
    memory: Annotated[bool, typer.Option("--memory", help="Bytes of the fullest rank, by what they hold.")] = False,
    messages: Annotated[bool, typer.Option("--messages", help="When messages came, flow by flow.")] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="Every check of the verdict, with its limit and why.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option("--details", help="All of these, and times: on this machine, bubbles, events, what jobs share."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run from its files: its answer, as `run` ends with, or more of it; draw its picture where that is missing.

    The answer is one table, the checks that failed, and in one sentence which schedule is fastest, by how much, whether
    in the predicted order, and whether to trust it.
    """
    from testbed.cli.run_tables import ReportPart

    extras.require("report")
    if len(directories) > 1 and (html is None or svg or trace or as_json):
        expected = "one; several are shown by --html FILE, without --svg, --trace and --json"
        raise BadInput.of("testbed report", "DIR", f"{len(directories)} directories", expected)
    parts = {"--memory": memory, "--messages": messages, "--checks": checks}
    if as_json and not everything and any(parts.values()):
        beside = ", ".join(name for name, given in parts.items() if given)
        raise BadInput.of("--json", "option", beside, "none of these, or --details: the document has all of a run")
    if trace is not None:
        extras.require("trace")
        for table in directories[0].glob("*.parquet"):  # before any is read
            note_input(table.stat())
        require_writable(trace, "--trace")
    asked = {ReportPart.memory: memory, ReportPart.messages: messages, ReportPart.checks: checks}
    wanted = set(ReportPart) if everything else {part for part, given in asked.items() if given}
    found = {directory: _judged(directory, recheck=recheck) for directory in directories}
    for directory, (run, _) in found.items():
        if svg or (html is None and run.schedules and run.has_traces):
            _draw(directory, svg)
        if trace is not None:
            _write_trace(directory, trace)
    if html is not None:
        _write_page({directory: run for directory, (run, _) in found.items()}, html, quiet=as_json)
    for directory, (run, changed) in found.items():
        if as_json:
            emit(run.comparison)
        else:
            _show(run, directory, wanted, changed, answered=everything or not wanted)
    if recheck and any(row["reasons"] for run, _ in found.values() for row in run.comparison["schedules"]):
        raise typer.Exit(ExitCode.UNTRUSTED)


def _judged(directory: Path, *, recheck: bool) -> tuple[Run, list[str]]:
    """A run from its files; judged again, also for what its comparison says something else."""
    from testbed.results.damaged import judging
    from testbed.results.load import load_run

    found = load_run(directory)
    if not recheck:
        return found, []
    with judging(directory):
        comparison, changed = judged_again(directory, found.comparison)
    return replace(found, comparison=comparison), changed


def _draw(directory: Path, svg: Path | None) -> None:
    """The picture into the file that is asked for, else where it is missing."""
    from testbed.results.damaged import judging
    from testbed.results.destination import PICTURE
    from testbed.results.timeline_picture import draw_run

    picture = directory / PICTURE
    if svg or not picture.exists():
        with judging(directory), output(svg or picture, "--svg") as partial:
            draw_run(directory, partial)


def _write_trace(directory: Path, trace: Path) -> None:
    """The run for Perfetto's viewer."""
    from testbed.results.damaged import judging
    from testbed.results.perfetto_trace import write_run

    with judging(directory), output(trace, "--trace") as partial:
        write_run(directory, partial)


def _write_page(runs: Mapping[Path, Run], html: Path, *, quiet: bool) -> None:
    from testbed.cli.web_page import write_report

    size = write_report(runs, html)
    if not quiet:
        stdout_console(140).print(f"page: {html} ({show_size(size)})", highlight=False, markup=False, soft_wrap=True)


def _show(run: Run, directory: Path, wanted: Collection[ReportPart], changed: Sequence[str], *, answered: bool) -> None:
    from testbed.cli.answer import print_answer
    from testbed.cli.run_tables import details
    from testbed.results.destination import pictures_in

    console = stdout_console(140)
    if run.schedules:
        show(console, *details(run.comparison, wanted, console.width))
    for label in changed:
        said = f"{label}: comparison.json says something else than the data files"
        console.print(said, style="bold red", highlight=False)
    if answered:
        print_answer(console, run, directory, pages=len(pictures_in(directory)))


def judged_again(directory: Path, comparison: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A run's comparison with the verdict and the metric that its data files give, and for what it said something else.

    Raises BadInput where there is no verdict, a file of the evidence is missing, or the comparison has other times or
    another goodput.
    """
    from testbed.judge.evidence import judge
    from testbed.results.destination import COMPARISON
    from testbed.results.metric_recheck import fairness_again, same
    from testbed.results.recheck import evidence_by_name, name_of, require_goodput, require_times
    from testbed.results.run_files import RunFiles

    if not comparison["schedules"]:
        raise BadInput.of(str(directory), "finished schedules", 0, "one or more: there is no verdict to repeat")
    evidence = evidence_by_name(directory)
    rows, changed = [], []
    for place, row in enumerate(comparison["schedules"]):
        known = evidence[name_of(row)]
        require_times(row, known, str(directory / COMPARISON), f"schedules.{place}")
        checks = judge(known)
        reasons = [reason for check in checks for reason in check.reasons]
        answers = json.loads(json.dumps([check._asdict() | {"ok": check.ok} for check in checks]))
        notes = [note for check in checks for note in check.notes]
        missing = [check.question for check in checks if check.not_taken]
        verdict = {"reasons": reasons, "notes": notes, "not_taken": missing, "trusted": not reasons and not missing}
        rows.append(row | {"checks": answers} | verdict)
        # what an earlier version wrote had no questions that could not be asked
        was = row | {"checks": [{"not_taken": ""} | check for check in row["checks"]]}
        if rows[-1] != {"not_taken": []} | was:
            changed.append(name_of(row))
    for place, entry in enumerate(comparison.get("goodput", ())):
        (job,) = RunFiles(directory).plan.jobs
        require_goodput(entry, job, str(directory / COMPARISON), f"goodput.{place}")
    fairness = json.loads(json.dumps([asdict(case) for case in fairness_again(directory)]))
    for was, now in zip(comparison.get("fairness", ()), fairness, strict=True):
        if not same(was, now):
            changed.append(f"{now['label']}, two-layer metric")
    return comparison | {"schedules": rows, "fairness": fairness}, changed
