"""`testbed plan`: topology and workloads resolved into the one file that a run needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli.options import (
    ELEPHANTS,
    AsJson,
    Clock,
    ClockOption,
    Detour,
    ElephantsFrom,
    Iterations,
    OnePolicy,
    Quiet,
    Schedules,
    SchedulesFrom,
    SeedOption,
    Settings,
    Strict,
    TopologyFile,
    WorkloadFiles,
    bytes_of_elephants,
    emit,
    read_text,
    seed_of,
    stdout_console,
)
from testbed.errors import BadInput
from testbed.files import write_output

if TYPE_CHECKING:
    from testbed.plan.plan import Plan


def plan(
    topology: TopologyFile,
    workloads: WorkloadFiles,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file to write.")] = Path("plan.json"),
    schedule: Schedules = None,
    iterations: Iterations = None,
    schedules_from: SchedulesFrom = None,
    policy: OnePolicy = None,
    elephants_from: ElephantsFrom = ELEPHANTS,
    detour: Detour = 1,
    clock: ClockOption = Clock.real,
    seed: SeedOption = None,
    settings: Settings = None,
    strict: Strict = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write plan.json: who is where, which way everything goes, every schedule. `testbed run plan.json` measures it.

    Several workloads are jobs at the same time, on nodes of their own. The first schedules of all of them are one case,
    the second ones another, and so on; a workload with one schedule has it in every case. They can be predicted, not
    trained yet. With --policy, every case takes the routes that a policy chooses of those that the topology has.
    """
    from testbed.cli import tables
    from testbed.cli.full_scale_tables import derivation_lines, full_scale_tables
    from testbed.plan import file, resolve
    from testbed.plan.derivation import derivation
    from testbed.plan.plan import Clock as PlannedClock
    from testbed.plan.unlike import full_scale_times
    from testbed.routing.apply import with_policy
    from testbed.routing.registry import choose

    if len(workloads) > 1 and schedules_from:
        expected = "one: a run's file does not say whose schedules they are"
        raise BadInput.of("--schedules-from", "option", f"{len(workloads)} workloads", expected)
    clocked = PlannedClock(clock.value, seed_of(seed, virtual=clock is Clock.virtual))
    made = resolve.load_plan(topology, *workloads, settings=settings or [], iterations=iterations)
    made = resolve.with_clock(made, clocked)
    chosen = None if policy is None else choose(policy)
    made = complete(made, schedule, schedules_from, quiet=quiet, strict=strict, sources=workloads)
    remarks: tuple[str, ...] = ()
    if chosen is not None:
        made, remarks = with_policy(made, chosen, elephants_from=bytes_of_elephants(elephants_from), detour=detour)
    write_output(out, file.to_json(made), "--out")
    derived = [line for job in made.jobs for line in derivation(made, job)]
    if as_json:
        facts = {"written_to": str(out), "cases": [case.label for case in made.cases], "left_out": dict(made.left_out)}
        emit(facts | {"derivation": [line._asdict() for line in derived], "full_scale": full_scale_times(made)})
        return
    console = stdout_console(140)
    console.print(tables.plan_table(made))
    if derived:
        console.print(derivation_lines(derived))
        for table in full_scale_tables(list(full_scale_times(made).items()), console.width):
            console.print(table)
    tables.print_remarks(console, made)
    for remark in remarks:
        console.print(remark, highlight=False, markup=False)
    console.print(f"written to {out}", highlight=False, soft_wrap=True)


def complete(
    unfinished: Plan,
    schedule: Sequence[str] | None,
    schedules_from: Path | None,
    *,
    quiet: bool,
    strict: bool = False,
    sources: Sequence[Path] = (),
) -> Plan:
    """The plan with its cases: schedules kept in a file, the others generated. Raises BadInput.

    `strict`: also for one schedule that does not fit, instead of leaving it out. `sources` are the workloads' files.
    """
    from testbed.cli.progress import Terminal
    from testbed.cli.said import said_by_the_library
    from testbed.pipeline.validate import InvalidSchedule
    from testbed.plan import schedules
    from testbed.schedule.schedule_file import kept_in

    reporter = Terminal(quiet=quiet)
    with said_by_the_library(reporter.say), reporter.solving() as watch:
        kept = kept_in(read_text(schedules_from), str(schedules_from)) if schedules_from else None
        selected = []
        for job in range(len(unfinished.jobs)):
            source = str(sources[job]) if sources else None
            choices = schedules.choose(unfinished, schedule or [], job=job)
            try:
                made = schedules.make(unfinished, choices, kept, watch, job=job, source=source, strict=strict)
            except InvalidSchedule as error:
                if not kept or error.name not in kept:
                    raise
                raise error.within(str(schedules_from)) from error
            selected.append(made)
        return schedules.with_selected(unfinished, selected)


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
