"""`testbed calibrate`: the network built, and every link measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.options import (
    AUTO_SHAPER,
    AsJson,
    ClockName,
    ClockOption,
    HostPriorityOption,
    Quiet,
    SeedOption,
    ShaperOption,
    TopologyFile,
    VmOption,
    emit,
    host_priority_of,
    in_sandbox,
    seed_of,
    stdout_console,
)
from testbed.errors import BadInput, ExitCode
from testbed.lab.host_settings import HostPriority

if TYPE_CHECKING:
    from testbed.plan.plan import Clock as PlannedClock

LARGEST_BYTES = 1e9
"""As a workload's messages may be."""


def calibrate(
    topology: TopologyFile,
    shaper: ShaperOption = AUTO_SHAPER,
    host_priority: HostPriorityOption = None,
    vm: VmOption = False,
    clock: ClockOption = ClockName.real,
    seed: SeedOption = None,
    beside_mininet: Annotated[
        bool, typer.Option("--beside-mininet", help="Also measure a plain Mininet TCLink for every link.")
    ] = False,
    engine: Annotated[
        Path | None,
        typer.Option(metavar="WORKLOAD", help="Measure what messages of this workload cost here, instead of links."),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="With --engine: a message's size (repeatable); default: the workload's.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build the network and measure every link: asked against measured. Needs root.

    With --engine, measure what engine and network stack add to every message.
    """
    from testbed.cli.progress import Terminal
    from testbed.plan.plan import Clock as PlannedClock
    from testbed.planning.resolve import measurement_of
    from testbed.spec import load_topology

    number = seed_of(seed, virtual=clock is ClockName.virtual)
    priority = host_priority_of(host_priority, guest=vm or clock is ClockName.virtual)
    if engine is not None:
        chosen = PlannedClock("virtual" if vm or clock is ClockName.virtual else "real", number)
        asked = _Asked(topology, engine, tuple(size or ()), shaper, priority, vm, as_json, quiet)
        raise typer.Exit(_measure_engine(asked, chosen))
    if size:
        raise BadInput.of("--size", "option", size[0], "--engine WORKLOAD beside it")
    plan, reporter = measurement_of(load_topology(topology)), Terminal(quiet=quiet)
    if vm or clock is ClockName.virtual:
        from testbed.vm import command

        machine = command.choose_machine(PlannedClock(clock.value, number))
        code, document = command.calibrate(machine, plan, beside_mininet=beside_mininet, reporter=reporter)
        if document is not None:
            _show(document, as_json=as_json)
        raise typer.Exit(code)

    def body() -> int:
        from testbed.session.links import measure_links

        document = measure_links(
            plan,
            shaper=shaper,
            host_priority=priority,
            beside_mininet=beside_mininet,
            reporter=reporter,
        )
        _show(document, as_json=as_json)
        return ExitCode.OK if all(link["ok"] for link in document["links"]) else ExitCode.UNTRUSTED

    raise typer.Exit(in_sandbox(body))


@dataclass(frozen=True)
class _Asked:
    """How the engine is to be measured."""

    topology: Path
    workload: Path
    sizes: tuple[str, ...]
    shaper: str
    host_priority: HostPriority
    vm: bool
    as_json: bool
    quiet: bool


def _measure_engine(asked: _Asked, clock: PlannedClock) -> int:
    """Exit code of `testbed calibrate --engine`."""
    from testbed.cli.plan import complete
    from testbed.cli.progress import Terminal
    from testbed.planning import resolve

    plan = resolve.with_clock(resolve.load_plan(asked.topology, asked.workload), clock)
    workload = plan.jobs[0].workload
    if workload.pacing is None:
        raise BadInput.of(str(asked.workload), "pacing", "none", "times: what a message adds to a slot is measured")
    plan = complete(plan, ["1f1b"], None, quiet=asked.quiet)
    resolve.require_trainable(plan)
    sizes = [_bytes(text) for text in asked.sizes] or [workload.message_bytes()]
    reporter = Terminal(quiet=asked.quiet)
    if asked.vm or clock.name == "virtual":
        from testbed.vm import command

        code, document = command.measure_engine(command.choose_machine(clock), plan, sizes, reporter=reporter)
        if document is not None:
            _show_engine(document, as_json=asked.as_json)
        return code

    def body() -> int:
        from testbed.session.engine_costs import measure_engine
        from testbed.session.machine_report import this_machine

        document = measure_engine(
            plan,
            sizes,
            machine=this_machine(),
            shaper=asked.shaper,
            host_priority=asked.host_priority,
            witness=witness,
            reporter=reporter,
        )
        _show_engine(document, as_json=asked.as_json)
        return ExitCode.OK

    from testbed.lab.machine_witness import MachineWitness

    with MachineWitness() as witness:
        return in_sandbox(body)


def _bytes(text: str) -> int:
    """Raises BadInput."""
    from testbed.units import SIZE, parse

    try:
        size = parse(text, SIZE, "a size")
    except ValueError as error:
        raise BadInput.of("--size", "option", text, str(error)) from error
    if not 1 <= size <= LARGEST_BYTES:
        raise BadInput.of("--size", "option", text, "1 B to 1 GB")
    return int(size)


def _show_engine(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(document)
        return
    from testbed.cli.lab_tables import engine_tables

    console = stdout_console(140)
    for table in engine_tables(document, console.width):
        console.print(table)


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(document)
        return
    from testbed.cli.lab_tables import link_tables, mininet_tables

    console = stdout_console(140)
    for table in link_tables(document["topology"], document["links"], console.width):
        console.print(table)
    for table in mininet_tables(document.get("mininet") or [], console.width):
        console.print(table)
