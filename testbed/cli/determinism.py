"""`testbed test-determinism`: is the virtual clock deterministic on this machine?"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from testbed import extras
from testbed.cli import options
from testbed.cli.plan import complete
from testbed.cli.table_layout import Column, Section, fitted
from testbed.errors import ExitCode
from testbed.files import write_output

if TYPE_CHECKING:
    from testbed.vm.determinism import Determinism, SeedSpread

_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Keep every boot's results here; default: not kept.")]


def determinism(
    topology: options.TopologyFile,
    workload: options.WorkloadFile,
    boots: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Boots per seed.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Seeds 1 to this number.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Boots at once.")] = 2,
    schedule: options.Schedules = None,
    iterations: options.Iterations = None,
    settings: options.Settings = None,
    out: _Out = None,
    wall_limit: options.WallLimit = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Boot the same virtual-clock run again and again: are all ranks' times the same to the nanosecond?

    Exit code 0: every boot of a seed gave the same; 5: not.
    """
    from testbed.cli.progress import Terminal
    from testbed.plan.plan import Clock
    from testbed.planning.resolve import load_plan, require_trainable, with_clock
    from testbed.results.destination import results_directory
    from testbed.scratch import scratch_directory
    from testbed.vm import kernel
    from testbed.vm.command import GuestTraining, require_no_limits
    from testbed.vm.determinism import measure

    extras.require("train")
    kernel.require()
    plan = load_plan(topology, workload, settings=settings or [], iterations=iterations)
    require_no_limits(plan)
    with (
        scratch_directory("testbed-determinism-") as scratch,
        results_directory(out or scratch / "results", overwrite=None) as directory,
    ):
        require_trainable(with_clock(plan, Clock("virtual")))
        training = GuestTraining(complete(plan, schedule, None, quiet=quiet), directory)
        try:
            found = measure(
                training,
                boots=boots,
                seeds=range(1, seeds + 1),
                jobs=jobs,
                limit_s=options.wall_limit_of(wall_limit, guest=True),
                reporter=Terminal(quiet=quiet),
            )
        except KeyboardInterrupt:
            if out:
                print(f"boots that were finished are in {out}/", file=sys.stderr)
            raise
        if out:
            text = json.dumps(found.as_json(), indent=2) + "\n"
            write_output(out / "determinism.json", text, "--out")
    if as_json:
        options.emit(found.as_json())
    else:
        _print(found, f"{topology.stem} x {workload.stem}")
    if not found.identical:
        raise typer.Exit(ExitCode.UNTRUSTED)


def _print(found: Determinism, name: str) -> None:
    console = options.stdout_console(120)
    table = Table("seed", "boots", "identical", "largest difference", title=name, title_justify="left")
    for verdict in found.seeds:
        difference = f"{verdict.largest_difference_ns} ns"
        table.add_row(str(verdict.seed), str(verdict.boots), str(verdict.identical), difference)
    options.show(console, table, *spread_tables(found.spreads, console.width))


def spread_tables(spreads: Sequence[SeedSpread], width: int) -> list[Table]:
    """Iteration times over the seeds, a row per schedule."""
    columns = [
        Column(name, [f"{getattr(row, f'{name}_s') * 1e3:.6f} ms" for row in spreads])
        for name in ("median", "lowest", "highest")
    ]
    columns.append(Column("deviation", [f"{row.deviation_s * 1e6:z.3f} us" for row in spreads]))
    key = Column("schedule", [row.schedule for row in spreads], left=True)
    return fitted(key, [Section("iteration time across seeds", columns)], width)
