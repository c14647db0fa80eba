"""`testbed calibrate`: the network built, and every link measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed import extras
from testbed.cli import options
from testbed.errors import BadInput, ExitCode
from testbed.lab.host_settings import HostPriority

if TYPE_CHECKING:
    from testbed.plan.plan import Clock, Plan
    from testbed.progress import Reporter

LARGEST_BYTES = 1e9
"""As a workload's messages may be."""


def calibrate(
    topology: options.TopologyFile,
    shaper: options.ShaperOption = options.AUTO_SHAPER,
    host_priority: options.HostPriorityOption = None,
    vm: options.VmOption = False,
    clock: options.ClockOption = options.ClockName.real,
    seed: options.SeedOption = None,
    beside_mininet: Annotated[
        bool, typer.Option("--beside-mininet", help="Also measure a plain Mininet TCLink for every link.")
    ] = False,
    engine: Annotated[
        Path | None,
        typer.Option(
            metavar="WORKLOAD",
            help="Measure what messages of this workload cost here, instead of links.",
            autocompletion=options.workload_names,
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help="With --engine: a message's size, that of its tensor at least (repeatable); default: the workload's.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Build the network and measure every link: asked against measured. Needs root, or user namespaces.

    With --engine, measure what engine and network stack add to every message.
    """
    from testbed.cli.progress import Terminal
    from testbed.plan.plan import Clock
    from testbed.planning.resolve import measurement_of, with_clock
    from testbed.spec import load_topology

    virtual, reporter = clock is options.ClockName.virtual, Terminal(quiet=quiet)
    number, guest = options.seed_of(seed, virtual=virtual), options.in_guest(vm, virtual=virtual)
    how = _Way(shaper, options.host_priority_of(host_priority, guest=guest), reporter, as_json)
    if engine is not None:
        if beside_mininet:
            raise BadInput.of("--beside-mininet", "option", "--engine", "links that are measured, not messages")
        plan, sizes = _of_engine(topology, engine, size or (), Clock(clock.value, number), quiet=quiet)
        raise typer.Exit(_measure_engine(plan, sizes, how, guest=guest))
    if size:
        raise BadInput.of("--size", "option", size[0], "--engine WORKLOAD beside it")
    plan = with_clock(measurement_of(load_topology(topology)), Clock(clock.value, number))
    extras.require("train")
    raise typer.Exit(_measure_links(plan, how, guest=guest, beside_mininet=beside_mininet))


@dataclass(frozen=True)
class _Way:
    """How it is to be measured and shown."""

    shaper: str
    host_priority: HostPriority
    reporter: Reporter
    as_json: bool


def _measure_links(plan: Plan, how: _Way, *, guest: bool, beside_mininet: bool) -> int:
    """Exit code of `testbed calibrate`."""
    if guest:
        from testbed.vm import command

        command.require_no_limits(plan)
        machine = command.choose_machine(plan.clock)
        code, document = command.calibrate(
            machine, plan, shaper=how.shaper, beside_mininet=beside_mininet, reporter=how.reporter
        )
        return _shown(code, document, how)

    def body() -> int:
        from testbed.session.links import measure_links

        priority, shaper = how.host_priority, how.shaper
        found = measure_links(
            plan, shaper=shaper, host_priority=priority, beside_mininet=beside_mininet, reporter=how.reporter
        )
        return _shown(ExitCode.OK if all(link["ok"] for link in found["links"]) else ExitCode.UNTRUSTED, found, how)

    return options.in_sandbox(body)


def _of_engine(
    topology: Path, workload: Path, sizes: Sequence[str], clock: Clock, *, quiet: bool
) -> tuple[Plan, list[int]]:
    """The plan to measure messages with, and their sizes. Raises BadInput."""
    from testbed.cli.plan import complete
    from testbed.planning import resolve

    plan = resolve.with_clock(resolve.load_plan(topology, workload), clock)
    asked = plan.jobs[0].workload
    if asked.pacing is None:
        raise BadInput.of(str(workload), "pacing", "none", "times: what a message adds to a slot is measured")
    extras.require("train")
    plan = complete(plan, ["1f1b"], None, quiet=quiet)
    resolve.require_trainable(plan)
    return plan, [_bytes(text) for text in sizes] or [asked.message_bytes()]


def _measure_engine(plan: Plan, sizes: Sequence[int], how: _Way, *, guest: bool) -> int:
    """Exit code of `testbed calibrate --engine`."""
    if guest:
        from testbed.vm import command

        command.require_no_limits(plan)
        machine = command.choose_machine(plan.clock)
        found = command.measure_engine(machine, plan, sizes, shaper=how.shaper, reporter=how.reporter)
        return _shown(*found, how)
    from testbed.lab.machine_witness import MachineWitness

    with MachineWitness() as witness:

        def body() -> int:
            from testbed.session.engine_costs import measure_engine
            from testbed.session.machine_report import this_machine

            document = measure_engine(
                plan,
                sizes,
                machine=this_machine(),
                shaper=how.shaper,
                host_priority=how.host_priority,
                witness=witness,
                reporter=how.reporter,
            )
            return _shown(ExitCode.OK, document, how)

        return options.in_sandbox(body)


def _bytes(text: str) -> int:
    """Raises BadInput."""
    from testbed.units import SIZE

    size = options.quantity("--size", text, SIZE, "a size")
    if not 1 <= size <= LARGEST_BYTES:
        raise BadInput.of("--size", "option", text, "1 B to 1 GB")
    return int(size)


def _shown(code: int, document: Mapping[str, Any] | None, how: _Way) -> int:
    """Show what was measured, if anything was; returns the exit code."""
    from testbed.cli.lab_tables import engine_tables, link_tables, mininet_tables

    if document is None:
        return code
    if how.as_json:
        options.emit(document)
        return code
    console = options.stdout_console(140)
    if "links" not in document:
        options.show(console, *engine_tables(document, console.width))
        return code
    links = link_tables(document["topology"], document["links"], console.width)
    options.show(console, *links, *mininet_tables(document.get("mininet") or [], console.width))
    return code
