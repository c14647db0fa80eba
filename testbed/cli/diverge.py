"""`testbed diverge`: the first action and the first message in which two runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.errors import ExitCode

if TYPE_CHECKING:
    from testbed.results.divergence import Divergence, RowDifference

_One = Annotated[Path, typer.Argument(metavar="A", help="A results directory ...", show_default=False)]
_Other = Annotated[Path, typer.Argument(metavar="B", help="... and another one.", show_default=False)]


def diverge(one: _One, other: _Other, as_json: options.AsJson = False) -> None:
    """Where two runs part: the first action and the first message that were measured at another nanosecond.

    Cases are compared by their labels, rows by job, iteration, rank, stage and microbatch; first is what differs in the
    earliest iteration, there at the earliest time. Inputs of the runs that differ are named. Exit code 5: they differ.
    """
    from testbed.results.divergence import diverge as compared

    found = compared(one, other)
    if as_json:
        options.emit({"one": str(one), "other": str(other)} | found.as_json())
    else:
        _print(found, one, other)
    if not found.identical:
        raise typer.Exit(ExitCode.UNTRUSTED)


def _print(found: Divergence, one: Path, other: Path) -> None:
    console = options.stdout_console(100)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False)

    if found.identical:
        say("identical: every time of every action and message, to the nanosecond")
    for kind, first, count in (("action", found.action, found.actions), ("message", found.message, found.messages)):
        if first is None:
            say(f"{kind}s: all the same")
            continue
        say(f"{kind}s: {count} differ; the first is {words(first)}")
        for place, value in ((one, first.one), (other, first.other)):
            say(f"  {shown(first.column, value):>16}  {place}")
        if first.by_s is not None:
            say(f"  {first.by_s * 1e6:>+13.3f} us  later" if first.by_s > 0 else f"  {first.by_s * 1e6:>+13.3f} us")
    if found.schedules_in_one:
        say(f"in one run only: {', '.join(found.schedules_in_one)}")
    say(f"inputs that differ: {', '.join(found.inputs) or 'none that the manifests name'}")


def words(first: RowDifference) -> str:
    """Which action or message of which case it is, and what of it differs."""
    row, which = first.row, f"of {first.schedule}, iteration {first.row['iteration']}"
    if "rank" in row:
        what = f"{row['kind']}{row['microbatch']} of stage {row['stage']} on rank {row['rank']}"
        if row["replica"]:
            what += f" (replica {row['replica']})"
    else:
        what = f"{row['kind']} {row['microbatch']} of stage {row['stage']}, rank {row['source_rank']} to "
        what += str(row["target_rank"])
    job = f" of job {row['job']}" if row["job"] else ""
    return f"{what}{job}, {which}: {first.column}"


def shown(column: str, value: float | None) -> str:
    """What a run has in a column."""
    if column.endswith("_s"):
        return "unknown" if value is None else f"{value * 1e3:.6f} ms"
    if column.startswith("in one"):
        return "not there" if value is None else "there"
    return "unknown" if value is None else f"{value:g}"
