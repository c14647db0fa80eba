"""`testbed report`: a run's answer from its files, or its details; its picture again, its verdict judged again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed import extras
from testbed.cli.options import AsJson, drawable, emit, show, stdout_console
from testbed.errors import BadInput, ExitCode
from testbed.files import output, require_writable


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The results of a run, complete or not.")],
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=drawable,
            help="Draw the picture into this file; default: DIR/timeline.svg where it is missing.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write every action and message of the measured iterations, predicted beside measured, as a trace for "
            "Perfetto (ui.perfetto.dev).",
        ),
    ] = None,
    recheck: Annotated[
        bool,
        typer.Option(
            "--recheck", help="Judge again from the data files; exit code 5 where a schedule cannot be trusted."
        ),
    ] = False,
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
    from testbed.cli.answer import print_answer
    from testbed.cli.run_tables import ReportPart, details
    from testbed.results.damaged import judging
    from testbed.results.destination import PICTURE, pictures_in
    from testbed.results.load import load_run
    from testbed.results.timeline_picture import draw_run

    extras.require("report")
    if trace is not None:
        require_writable(trace, "--trace")
    found = load_run(directory)
    changed: list[str] = []
    if recheck:
        with judging(directory):
            comparison, changed = judged_again(directory, found.comparison)
        found = replace(found, comparison=comparison)
    picture = directory / PICTURE
    if svg or (found.schedules and found.has_traces and not picture.exists()):
        with judging(directory), output(svg or picture, "--svg") as partial:
            draw_run(directory, partial)
    if trace is not None:
        from testbed.results.perfetto_trace import write_run

        with judging(directory), output(trace, "--trace") as partial:
            write_run(directory, partial)
    if as_json:
        emit(found.comparison)
    else:
        console = stdout_console(140)
        asked = {ReportPart.memory: memory, ReportPart.messages: messages, ReportPart.checks: checks}
        wanted = set(ReportPart) if everything else {part for part, given in asked.items() if given}
        if found.schedules:
            show(console, *details(found.comparison, wanted, console.width))
        for label in changed:
            said = f"{label}: comparison.json says something else than the data files"
            console.print(said, style="bold red", highlight=False)
        if everything or not wanted:
            print_answer(console, found, directory, pages=len(pictures_in(directory)))
    if recheck and not all(row["trusted"] for row in found.comparison["schedules"]):
        raise typer.Exit(ExitCode.UNTRUSTED)


def judged_again(directory: Path, comparison: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A run's comparison with the verdict and the metric that its data files give, and for what it said something else.

    Raises BadInput where there is no verdict, or a file of the evidence is missing.
    """
    from testbed.results.metric_recheck import fairness_again, same
    from testbed.results.recheck import name_of, recheck

    if not comparison["schedules"]:
        raise BadInput.of(str(directory), "finished schedules", 0, "one or more: there is no verdict to repeat")
    again = recheck(directory)
    rows, changed = [], []
    for row in comparison["schedules"]:
        checks = again[name_of(row)]
        reasons = [reason for check in checks for reason in check.reasons]
        answers = json.loads(json.dumps([check._asdict() | {"ok": check.ok} for check in checks]))
        notes = [note for check in checks for note in check.notes]
        rows.append(row | {"checks": answers, "reasons": reasons, "notes": notes, "trusted": not reasons})
        if rows[-1] != row:
            changed.append(name_of(row))
    fairness = json.loads(json.dumps([asdict(case) for case in fairness_again(directory)]))
    for was, now in zip(comparison.get("fairness", ()), fairness, strict=True):
        if not same(was, now):
            changed.append(f"{now['label']}, two-layer metric")
    return comparison | {"schedules": rows, "fairness": fairness}, changed
