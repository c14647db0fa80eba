"""`testbed plan`: topology and workloads resolved into the one file that a run needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import (
    Clock,
    ClockOption,
    Iterations,
    Quiet,
    Schedules,
    SchedulesFrom,
    SeedOption,
    Settings,
    TopologyFile,
    read_text,
    stdout_console,
)

if TYPE_CHECKING:
    from testbed.plan.plan import Plan


def plan(
    topology: TopologyFile,
    workloads: Annotated[list[Path], typer.Argument(metavar="WORKLOAD...", help="Files such as workloads/*.yaml.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("plan.json"),
    schedule: Schedules = None,
    iterations: Iterations = None,
    schedules_from: SchedulesFrom = None,
    clock: ClockOption = Clock.real,
    seed: SeedOption = 1,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Write plan.json: who is where, which way everything goes, every schedule. `testbed run plan.json` measures it.

    Of several workloads it says where their ranks are: they have no schedules yet, and cannot be run.
    """
    from testbed.cli import tables
    from testbed.errors import BadInput
    from testbed.plan import file, resolve
    from testbed.plan.plan import Clock as PlannedClock

    given = [name for name, value in (("--schedule", schedule), ("--schedules-from", schedules_from)) if value]
    if len(workloads) > 1 and given:
        raise BadInput.of(
            given[0], "option", f"{len(workloads)} workloads", "one: several are placed, not scheduled yet"
        )
    made = resolve.load_plan(topology, *workloads, settings=settings or [], iterations=iterations)
    made = resolve.with_clock(made, PlannedClock(clock.value, seed))
    if len(workloads) == 1:
        made = complete(made, schedule, schedules_from, quiet=quiet)
    try:
        file.write(made, out)
    except OSError as error:
        raise BadInput.of("--out", "file", str(out), f"a place to write ({error.strerror})") from error
    console = stdout_console(140)
    console.print(tables.plan_table(made))
    console.print(f"written to {out}", highlight=False)


def complete(unfinished: Plan, schedule: Sequence[str] | None, schedules_from: Path | None, *, quiet: bool) -> Plan:
    """The plan with its cases: schedules kept in a file, the others generated. Raises BadInput."""
    from testbed.cli.progress import Terminal
    from testbed.plan import resolve
    from testbed.schedule.schedule_file import kept_in

    with Terminal(quiet=quiet).solving() as watch:
        choices = resolve.choose(unfinished, schedule or [], watch)
        kept = kept_in(read_text(schedules_from), str(schedules_from)) if schedules_from else None
        return resolve.with_cases(unfinished, choices, resolve.make(unfinished, choices, kept, watch))
