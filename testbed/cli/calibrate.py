"""`testbed calibrate`: the network built, and every link measured."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from testbed.cli.options import (
    AUTO_SHAPER,
    AsJson,
    Clock,
    ClockOption,
    HostPriorityOption,
    Quiet,
    SeedOption,
    ShaperOption,
    TopologyFile,
    VmOption,
    emit,
    in_sandbox,
    stdout_console,
)
from testbed.errors import ExitCode
from testbed.lab.host import HostPriority


def calibrate(
    topology: TopologyFile,
    shaper: ShaperOption = AUTO_SHAPER,
    host_priority: HostPriorityOption = HostPriority.on,
    vm: VmOption = False,
    clock: ClockOption = Clock.real,
    seed: SeedOption = 1,
    beside_mininet: Annotated[
        bool, typer.Option("--beside-mininet", help="Also measure a plain Mininet TCLink for every link.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build the network and measure every link: asked against measured. Needs root."""
    from testbed.cli.progress import Terminal
    from testbed.plan.plan import Clock as PlannedClock
    from testbed.plan.resolve import measurement_of
    from testbed.spec import load_topology

    plan, reporter = measurement_of(load_topology(topology)), Terminal(quiet=quiet)
    if vm or clock is Clock.virtual:
        from testbed.vm import command

        machine = command.choose_machine(PlannedClock(clock.value, seed))
        code, document = command.calibrate(machine, plan, beside_mininet=beside_mininet, reporter=reporter)
        if document is not None:
            _show(document, as_json=as_json)
        raise typer.Exit(code)

    def body() -> int:
        from testbed.session.links import measure_links

        document = measure_links(
            plan,
            shaper=shaper,
            host_priority=host_priority,
            beside_mininet=beside_mininet,
            reporter=reporter,
        )
        _show(document, as_json=as_json)
        return ExitCode.OK if all(link["ok"] for link in document["links"]) else ExitCode.UNTRUSTED

    raise typer.Exit(in_sandbox(body))


def _show(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit(document)
        return
    from testbed.cli import tables

    console = stdout_console(140)
    console.print(tables.link_table(document["topology"], document["links"]))
    if document.get("mininet"):
        console.print(tables.mininet_table(document["mininet"]))
