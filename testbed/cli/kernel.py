"""The commands that are about guests: building their kernel, and testing that their clock is deterministic."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from testbed.errors import ExitCode

if TYPE_CHECKING:
    from testbed.vm.determinism import Determinism

kernel_app = typer.Typer(help="The kernel of the virtual clock.", no_args_is_help=True)


class KernelSource(StrEnum):
    """Which of Debian's kernel sources to build from."""

    auto = "auto"
    backported = "7.2"
    installed = "6.12"


@kernel_app.command("build")
def kernel_build(
    source: Annotated[
        KernelSource, typer.Option(help="7.2: Debian's backport, downloaded; 6.12: installed; auto: 7.2, else 6.12.")
    ] = KernelSource.auto,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compilers at once; default: all CPUs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Build the time-travel kernel from Debian's source, unless it is there. About 10 CPU-minutes, 2 GB while at it."""
    from testbed.cli.progress import Terminal
    from testbed.vm import kernel

    series = None if source is KernelSource.auto else source.value
    built, now = kernel.build(Terminal(quiet=quiet), series=series, jobs=jobs)
    if as_json:
        json.dump({**built.as_json(), "path": str(built.path), "built_now": now}, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        print(f"{built.path} ({'built' if now else 'was there'}, from Debian's source {built.source_version})")


def determinism(
    topology: Annotated[Path, typer.Argument(metavar="TOPOLOGY")],
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD")],
    boots: Annotated[int, typer.Option(min=1, help="Boots per seed.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1 to this number.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Boots at once.")] = 2,
    schedule: Annotated[list[str] | None, typer.Option("--schedule", help="Only this schedule (repeatable).")] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Measured iterations.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Override a field, as for run.")] = None,
    out: Annotated[Path | None, typer.Option(help="Keep every boot's results here; default: not kept.")] = None,
    wall_limit: Annotated[float, typer.Option(help="Wall-clock seconds after which a boot is given up.")] = 900.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Boot the same virtual-clock run again and again: are all ranks' times the same to the nanosecond? Needs root.

    Exit code 0: every boot of a seed gave the same; 5: not.
    """
    from testbed.cli.plan import complete
    from testbed.cli.progress import Terminal
    from testbed.plan.plan import Clock
    from testbed.plan.resolve import load_plan, require_trainable, with_clock
    from testbed.results.place import results_directory
    from testbed.vm import kernel
    from testbed.vm.command import Training
    from testbed.vm.determinism import measure

    kernel.require()
    with (
        nullcontext(out) if out else tempfile.TemporaryDirectory(prefix="testbed-determinism-") as place,
        results_directory(Path(place), overwrite=False) as directory,
    ):
        plan = load_plan(topology, workload, settings=settings or [], iterations=iterations)
        require_trainable(with_clock(plan, Clock("virtual")))
        training = Training(complete(plan, schedule, None, quiet=quiet), directory)
        found = measure(
            training,
            boots=boots,
            seeds=range(1, seeds + 1),
            jobs=jobs,
            limit_s=wall_limit,
            reporter=Terminal(quiet=quiet),
        )
        if out:
            (out / "determinism.json").write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")
    if as_json:
        json.dump(found.as_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(found, f"{topology.stem} x {workload.stem}")
    if not found.identical:
        raise typer.Exit(ExitCode.UNTRUSTED)


def _print(found: Determinism, name: str) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("seed", "boots", "identical", "largest difference", title=name)
    for verdict in found.seeds:
        difference = f"{verdict.largest_difference_ns} ns"
        table.add_row(str(verdict.seed), str(verdict.boots), str(verdict.identical), difference)
    console.print(table)
    spreads = Table("schedule", "median", "lowest", "highest", "deviation", title="iteration time across seeds")
    for row in found.spreads:
        times = (f"{value * 1e3:.6f} ms" for value in (row.median_s, row.lowest_s, row.highest_s))
        spreads.add_row(row.schedule, *times, f"{row.deviation_s * 1e6:.3f} us")
    console.print(spreads)
