"""`testbed plan`: topology and workloads resolved into the one file that a run needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    WorkloadFiles,
    read_text,
    stdout_console,
)
from testbed.errors import BadInput

if TYPE_CHECKING:
    from testbed.plan.plan import Plan


def plan(
    topology: TopologyFile,
    workloads: WorkloadFiles,
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

    Several workloads are jobs at the same time, on nodes of their own. The first schedules of all of them are one case,
    the second ones another, and so on; a workload with one schedule has it in every case. They can be predicted, not
    trained yet.
    """
    from testbed.cli import tables
    from testbed.plan import file, resolve
    from testbed.plan.plan import Clock as PlannedClock

    if len(workloads) > 1 and schedules_from:
        expected = "one: a run's file does not say whose schedules they are"
        raise BadInput.of("--schedules-from", "option", f"{len(workloads)} workloads", expected)
    made = resolve.load_plan(topology, *workloads, settings=settings or [], iterations=iterations)
    made = resolve.with_clock(made, PlannedClock(clock.value, seed))
    made = complete(made, schedule, schedules_from, quiet=quiet)
    try:
        file.write(made, out)
    except OSError as error:
        raise BadInput.of("--out", "file", str(out), f"a place to write ({error.strerror})") from error
    console = stdout_console(140)
    console.print(tables.plan_table(made))
    console.print(f"written to {out}", highlight=False, soft_wrap=True)


def complete(unfinished: Plan, schedule: Sequence[str] | None, schedules_from: Path | None, *, quiet: bool) -> Plan:
    """The plan with its cases: schedules kept in a file, the others generated. Raises BadInput."""
    from testbed.cli.progress import Terminal
    from testbed.plan import resolve
    from testbed.schedule.schedule_file import kept_in

    with Terminal(quiet=quiet).solving() as watch:
        jobs = range(len(unfinished.jobs))
        choices = [resolve.choose(unfinished, schedule or [], watch, job=job) for job in jobs]
        met = resolve.meetings(unfinished, choices)
        kept = kept_in(read_text(schedules_from), str(schedules_from)) if schedules_from else None
        made = [resolve.make(unfinished, choices[job], kept, watch, job=job) for job in jobs]
        return resolve.with_meetings(unfinished, met, made)


def read_plan(path: Path, given: Mapping[str, object]) -> Plan:
    """The plan in a file or directory, which decides what options `given` beside it would. Raises BadInput."""
    from testbed.plan import file

    for name, value in given.items():
        if value:
            raise BadInput.of(name, "option", str(path), "TOPOLOGY and WORKLOAD: a plan has decided that already")
    if path.suffix in (".yaml", ".yml"):
        raise BadInput.of(str(path), "WORKLOAD", "nothing", "a workload after the topology")
    plan = file.read(path)
    if not plan.cases:
        raise BadInput.of(str(path), "cases", "none", "something to measure")
    return plan
