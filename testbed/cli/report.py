"""`testbed report`: a run's table and picture again, from its files, and its verdict judged again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.cli.options import AsJson, drawable, emit, stdout_console
from testbed.errors import BadInput, ExitCode
from testbed.files import output


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
    recheck: Annotated[
        bool,
        typer.Option(
            "--recheck", help="Judge again from the data files; exit code 5 where a schedule cannot be trusted."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run again from its files: the table as `run` prints it, and the picture."""
    from testbed.cli.run_tables import print_run
    from testbed.results.damaged import judging
    from testbed.results.load import load_run
    from testbed.results.picture import draw_run
    from testbed.results.place import PICTURE, pictures_in

    found = load_run(directory)
    with judging(directory):
        comparison, changed = judged_again(directory, found.comparison) if recheck else (found.comparison, [])
    picture = directory / PICTURE
    if svg or (found.schedules and found.has_traces and not picture.exists()):
        with judging(directory), output(svg or picture, "--svg") as partial:
            draw_run(directory, partial)
    if as_json:
        emit(comparison)
    else:
        console = stdout_console(140)
        if found.schedules:
            print_run(console, comparison, directory, pages=len(pictures_in(directory)))
        for label in changed:
            said = f"{label}: comparison.json says something else than the data files"
            console.print(said, style="bold red", highlight=False)
        if not found.complete:
            console.print(_what_is_missing(found.schedules, found.asked), style="bold red", highlight=False)
    if recheck and not all(row["trusted"] for row in comparison["schedules"]):
        raise typer.Exit(ExitCode.UNTRUSTED)


def judged_again(directory: Path, comparison: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A run's comparison with the verdict and the metric that its data files give, and for what it said something else.

    Raises BadInput where there is no verdict, or a file of the evidence is missing.
    """
    from testbed.results.fairness import fairness_again, same
    from testbed.results.verdict import name_of, recheck

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


def _what_is_missing(finished: list[str], asked: list[str]) -> str:
    missing = [name for name in asked if name not in finished]
    if not missing:
        return "this run is incomplete: it ended before it could say which schedules it was to measure"
    return f"this run is incomplete: {len(finished)} of {len(asked)} schedules finished, not {', '.join(missing)}"
