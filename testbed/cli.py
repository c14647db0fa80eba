"""The command line: parse, call, print. Whatever is slow to import is imported by the command that needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from testbed import __version__
from testbed.baseline_cli import baseline_app
from testbed.errors import BadInput, ExitCode, TestbedError
from testbed.lab.host import HostPriority
from testbed.options import (
    AsJson,
    Clock,
    ClockOption,
    HostPriorityOption,
    Quiet,
    Schedules,
    SeedOption,
    Settings,
    Shaper,
    ShaperOption,
    TopologyFile,
    VmOption,
    WallLimit,
    WorkloadFile,
    emit,
    read_text,
    stdout_console,
)
from testbed.plan import load_plan
from testbed.report_cli import report
from testbed.schedule_cli import schedule_app
from testbed.spec import load_topology
from testbed.vm.cli import determinism, kernel_app

app = typer.Typer(
    name="testbed",
    help="Train real pipelines across emulated datacenters, and compare what is measured with what the model says.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(schedule_app, name="schedule")
app.add_typer(kernel_app, name="kernel")
app.add_typer(baseline_app, name="baseline")
app.command("test-determinism")(determinism)
app.command()(report)


def main() -> None:
    """Entry point: runs a command and turns our errors into one line and an exit code."""
    try:
        app(standalone_mode=True)
    except TestbedError as error:
        _print_error(error)
        sys.exit(error.exit_code)


def _print_error(error: TestbedError) -> None:
    print(f"error: {error}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


def _in_sandbox(body: Callable[[], int], *, interactive: bool = False) -> None:
    from testbed.lab.sandbox import run_in_sandbox

    raise typer.Exit(run_in_sandbox(body, interactive=interactive))


@app.command()
def predict(
    topology: TopologyFile,
    workload: WorkloadFile,
    schedule: Schedules = None,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict the iteration time of every schedule. Needs no root, starts no containers."""
    from testbed import show
    from testbed.pipeline.memory import peak_in_flight
    from testbed.progress import Reporter

    plan = load_plan(topology, workload, settings or [])
    rows, proofs = [], []
    with Reporter(quiet=quiet).solving() as watch:
        for choice in plan.choose(schedule or [], watch):
            generated, proof = plan.generate(choice, watch=watch)
            timeline = plan.predict(choice, generated)
            makespan, bubble = float(timeline.makespans()[0]), float(timeline.bubble_ratios()[0])
            rows.append((choice.schedule, makespan, bubble, max(peak_in_flight(generated))))
            proofs.append(proof)
    baseline = next((row[1] for row in rows if row[0] == "1f1b"), None)
    full = [(*row, baseline / row[1] if baseline else None) for row in rows]
    if as_json:
        keys = ("schedule", "predicted_s", "bubble_predicted", "peak_in_flight_predicted", "speedup_predicted")
        names = {"topology": plan.topology.name, "workload": plan.workload.name}
        documents = [
            dict(zip(keys, row, strict=True)) | {"solver": proof and proof._asdict()}
            for row, proof in zip(full, proofs, strict=True)
        ]
        emit({**names, "schedules": documents})
        return
    console = Console()
    console.print(show.plan_table(plan))
    console.print(show.prediction_table(plan, full))
    for row, proof in zip(full, proofs, strict=True):
        if proof is not None:
            console.print(show.proof_line(row[0], proof), highlight=False)


@app.command()
def run(
    topology: TopologyFile,
    workload: WorkloadFile,
    schedule: Schedules = None,
    iterations: Annotated[int | None, typer.Option(help="Measured iterations; default: the workload's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Results directory; default: results/<names>-<time>.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
    shaper: ShaperOption = Shaper.auto,
    host_priority: HostPriorityOption = HostPriority.on,
    schedules_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take schedules from an earlier run's schedules.json; others are generated."),
    ] = None,
    vm: VmOption = False,
    clock: ClockOption = Clock.real,
    seed: SeedOption = 1,
    wall_limit: WallLimit = 900.0,
    picture: Annotated[bool, typer.Option(help="Draw timeline.svg; the data files hold the same.")] = True,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train across emulated datacenters under each schedule and compare with the model. Needs root."""
    plan = load_plan(topology, workload, settings or [], iterations=iterations)
    plan.require_trainable()
    if clock is Clock.virtual and not plan.workload.pacing:
        raise BadInput.of(
            plan.workload.name, "pacing", "none", "times for F, I and W: computation takes no virtual time"
        )
    from testbed.progress import Reporter
    from testbed.schedule.schedule_file import kept_in

    reporter = Reporter(quiet=quiet)
    with reporter.solving() as watch:
        choices = plan.choose(schedule or [], watch)
        kept = kept_in(read_text(schedules_from), str(schedules_from)) if schedules_from else None
        made = plan.make(choices, kept, watch)  # what cannot be scheduled is refused before anything starts
    from testbed.results.place import results_directory

    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    directory = out or Path("results") / f"{plan.topology.name}-{plan.workload.name}-{stamp}"

    def say(document: dict[str, Any], working: Path) -> None:
        if picture:
            from testbed.results.picture import draw_run

            with reporter.step("drawing timeline.svg"):
                draw_run(working, working / "timeline.svg")
        if as_json:
            emit(document)
        else:
            from testbed import show

            show.print_run(stdout_console(140), document, directory, picture=picture)

    if vm or clock is Clock.virtual:
        from testbed.vm import command

        machine = command.choose_machine(virtual=clock is Clock.virtual, seed=seed)
        with results_directory(directory, overwrite=overwrite) as working:
            training = command.Training(
                topology,
                workload,
                working,
                made,
                tuple(settings or ()),
                iterations,
                Shaper.netem if shaper is Shaper.auto else shaper,
                tuple(schedule or ()),
            )
            boot, (document,) = command.train(machine, [training], limit_s=wall_limit, reporter=reporter)
            if document is not None:
                say(document, working)
        raise typer.Exit(boot.ended[0].code)

    with results_directory(directory, overwrite=overwrite) as working:

        def body() -> int:
            from testbed.run import RunOptions, this_machine
            from testbed.run import run as run_plan

            document = run_plan(
                plan, RunOptions(choices, shaper.value, working, this_machine(), made, host_priority), reporter
            )
            say(document, working)
            return ExitCode.OK if all(row["trusted"] for row in document["schedules"]) else ExitCode.UNTRUSTED

        _in_sandbox(body)


@app.command()
def calibrate(
    topology: TopologyFile,
    shaper: ShaperOption = Shaper.auto,
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
    network = load_topology(topology)
    if vm or clock is Clock.virtual:
        from testbed.progress import Reporter
        from testbed.vm import command

        machine = command.choose_machine(virtual=clock is Clock.virtual, seed=seed)
        flags = (*(("--json",) if as_json else ()), *(("--beside-mininet",) if beside_mininet else ()))
        raise typer.Exit(command.calibrate(machine, topology, flags, Reporter(quiet=quiet)))

    def body() -> int:
        from testbed import show
        from testbed.lab.calibrate import calibrate as measure
        from testbed.lab.mininet_link import measure as measure_mininet
        from testbed.lab.network import Lab
        from testbed.progress import Reporter

        reporter = Reporter(quiet=quiet)
        with reporter.step(f"building {network.name}") as step:
            lab = Lab(network, shaper=shaper.value, progress=step.detail, host_priority=host_priority)
            lab.__enter__()
        try:
            with reporter.step("measuring links", total=len(lab.directions) // 2) as step:
                checks = measure(lab, progress=step.advance)
        finally:
            lab.__exit__(None, None, None)
        beside = []
        if beside_mininet:
            with reporter.step("measuring plain Mininet", total=len(lab.directions) // 2) as step:
                for asked in lab.directions[::2]:
                    step.detail(asked.label)
                    beside.append(measure_mininet(asked))
                    step.advance()
        if as_json:
            document = {"topology": network.name, "shaper": lab.shaper_name, "links": [c.as_json() for c in checks]}
            emit(document | ({"mininet": [one.as_json() for one in beside]} if beside_mininet else {}))
        else:
            stdout_console(140).print(show.link_table(network.name, checks))
            if beside:
                stdout_console(140).print(show.mininet_table(beside))
        return ExitCode.OK if all(check.ok for check in checks) else ExitCode.UNTRUSTED

    _in_sandbox(body)


@app.command()
def shell(
    topology: TopologyFile,
    shaper: ShaperOption = Shaper.auto,
    host_priority: HostPriorityOption = HostPriority.on,
) -> None:
    """Open Mininet's command line in the lab. Needs root."""
    network = load_topology(topology)

    def body() -> int:
        from testbed.lab.network import Lab
        from testbed.progress import Reporter

        say = Reporter(quiet=False).say
        with Lab(network, shaper=shaper.value, progress=say, host_priority=host_priority) as lab:
            lab.shell()
        return ExitCode.OK

    _in_sandbox(body, interactive=True)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Try every feature the testbed needs, and name the command that adds what is missing."""
    from testbed import show
    from testbed.lab.doctor import examine, usable
    from testbed.vm.doctor import examine as examine_guests

    findings = [*examine(), *examine_guests()]
    if as_json:
        emit({"findings": [asdict(finding) for finding in findings]})
    else:
        Console().print(show.doctor_table(findings))
    if not usable(findings):
        raise typer.Exit(ExitCode.MACHINE_LACKS)


if __name__ == "__main__":
    main()
