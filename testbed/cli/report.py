"""`testbed report`: a run's table and picture again, from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli.options import AsJson, emit, stdout_console
from testbed.files import output


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The results of a run, complete or not.")],
    svg: Annotated[
        Path | None,
        typer.Option(help="Draw the picture into this file; default: DIR/timeline.svg where it is missing."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run again from its files: the table as `run` prints it, and the picture."""
    from testbed.cli.run_tables import print_run
    from testbed.results.load import load_run
    from testbed.results.picture import draw_run
    from testbed.results.place import PICTURE, pictures_in

    found = load_run(directory)
    picture = directory / PICTURE
    if svg or (found.schedules and found.has_traces and not picture.exists()):
        with output(svg or picture, "--svg") as partial:
            draw_run(directory, partial)
    if as_json:
        emit(found.comparison)
        return
    console = stdout_console(140)
    if found.schedules:
        print_run(console, found.comparison, directory, pages=len(pictures_in(directory)))
    if not found.complete:
        console.print(_what_is_missing(found.schedules, found.asked), style="bold red", highlight=False)


def _what_is_missing(finished: list[str], asked: list[str]) -> str:
    missing = [name for name in asked if name not in finished]
    if not missing:
        return "this run is incomplete: it ended before it could say which schedules it was to measure"
    return f"this run is incomplete: {len(finished)} of {len(asked)} schedules finished, not {', '.join(missing)}"
