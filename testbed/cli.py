"""The command line: parse, call, print. Whatever is slow to import is imported by the command that needs it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from testbed import __version__
from testbed.errors import BadInput, ExitCode, TestbedError
from testbed.plan import Plan, load_plan
from testbed.spec import load_topology
from testbed.vm.cli import determinism, kernel_app

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="testbed",
    help="Train real pipelines across emulated datacenters, and compare what is measured with what the model says.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
schedule_app = typer.Typer(help="Look at schedules.", no_args_is_help=True)
app.add_typer(schedule_app, name="schedule")
app.add_typer(kernel_app, name="kernel")
app.command("test-determinism")(determinism)


class Shaper(StrEnum):
    """How links are shaped."""

    auto = "auto"
    netem = "netem"
    relay = "relay"


class Clock(StrEnum):
    """What makes time pass."""

    real = "real"
    virtual = "virtual"


TopologyFile = Annotated[Path, typer.Argument(metavar="TOPOLOGY", help="A file such as topologies/two-dc-metro.yaml.")]
WorkloadFile = Annotated[Path, typer.Argument(metavar="WORKLOAD", help="A file such as workloads/tiny-gpt-pp4.yaml.")]
Schedules = Annotated[
    list[str] | None, typer.Option("--schedule", help="Only this schedule (repeatable); default: the workload's.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field of the workload, e.g. microbatches=16 or topology.links=... "),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
VmOption = Annotated[bool, typer.Option("--vm", help="In Debian's User-Mode Linux, which has netem anywhere.")]
ClockOption = Annotated[Clock, typer.Option(help="virtual: in a guest whose time does not depend on this machine.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the virtual clock's kernel: ports, hashes, sequences.")]
WallLimit = Annotated[float, typer.Option(help="Wall-clock seconds after which a guest is given up.")]
ShaperOption = Annotated[Shaper, typer.Option("--shaper", help="auto: netem where the kernel has it, else relay.")]


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


def _plan(topology: Path, workload: Path, settings: list[str] | None, **direct: object) -> Plan:
    return load_plan(topology, workload, settings or [], **direct)


def _in_sandbox(body: Callable[[], int], *, interactive: bool = False) -> None:
    from testbed.lab.sandbox import run_in_sandbox

    raise typer.Exit(run_in_sandbox(body, interactive=interactive))


def _console(otherwise: int) -> Console:
    """Stdout, as wide as the terminal or as COLUMNS says; else `otherwise` columns."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else otherwise)


def _emit(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


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

    plan = _plan(topology, workload, settings)
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
        _emit({**names, "schedules": documents})
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
    schedules_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take schedules from an earlier run's schedules.json; others are generated."),
    ] = None,
    vm: VmOption = False,
    clock: ClockOption = Clock.real,
    seed: SeedOption = 1,
    wall_limit: WallLimit = 900.0,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train across emulated datacenters under each schedule and compare with the model. Needs root."""
    plan = _plan(topology, workload, settings, iterations=iterations)
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
        kept = kept_in(_read_text(schedules_from), str(schedules_from)) if schedules_from else None
        made = plan.make(choices, kept, watch)  # what cannot be scheduled is refused before anything starts
    from testbed.collect.results import prepare_directory

    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    directory = out or Path("results") / f"{plan.topology.name}-{plan.workload.name}-{stamp}"

    def say(document: dict[str, Any]) -> None:
        if as_json:
            _emit(document)
        else:
            from testbed import show

            show.print_run(_console(140), document, directory)

    if vm or clock is Clock.virtual:
        from testbed.vm import command

        machine = command.choose_machine(virtual=clock is Clock.virtual, seed=seed)
        prepare_directory(directory, overwrite=overwrite)
        training = command.Training(
            topology,
            workload,
            directory,
            made,
            tuple(settings or ()),
            iterations,
            Shaper.netem if shaper is Shaper.auto else shaper,
            tuple(schedule or ()),
        )
        boot, (document,) = command.train(machine, [training], limit_s=wall_limit, reporter=reporter)
        if document is not None:
            say(document)
        raise typer.Exit(boot.ended[0].code)

    def body() -> int:
        from testbed.run import RunOptions, this_machine
        from testbed.run import run as run_plan

        prepare_directory(directory, overwrite=overwrite)
        document = run_plan(plan, RunOptions(choices, shaper.value, directory, this_machine(), made), reporter)
        say(document)
        return ExitCode.OK if all(row["trusted"] for row in document["schedules"]) else ExitCode.UNTRUSTED

    _in_sandbox(body)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput.of(str(path), "file", str(error), "a readable file") from error


@app.command()
def calibrate(
    topology: TopologyFile,
    shaper: ShaperOption = Shaper.auto,
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
            lab = Lab(network, shaper=shaper.value, progress=step.detail)
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
            _emit(document | ({"mininet": [one.as_json() for one in beside]} if beside_mininet else {}))
        else:
            _console(140).print(show.link_table(network.name, checks))
            if beside:
                _console(140).print(show.mininet_table(beside))
        return ExitCode.OK if all(check.ok for check in checks) else ExitCode.UNTRUSTED

    _in_sandbox(body)


@app.command()
def shell(topology: TopologyFile, shaper: ShaperOption = Shaper.auto) -> None:
    """Open Mininet's command line in the lab. Needs root."""
    network = load_topology(topology)

    def body() -> int:
        from testbed.lab.network import Lab
        from testbed.progress import Reporter

        with Lab(network, shaper=shaper.value, progress=Reporter(quiet=False).say) as lab:
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
        _emit({"findings": [asdict(finding) for finding in findings]})
    else:
        Console().print(show.doctor_table(findings))
    if not usable(findings):
        raise typer.Exit(ExitCode.MACHINE_LACKS)


@schedule_app.command("show")
def schedule_show(
    topology: TopologyFile,
    workload: WorkloadFile,
    schedule: Schedules = None,
    settings: Settings = None,
    svg: Annotated[Path | None, typer.Option(help="Also draw the predicted timelines into this file.")] = None,
    order: Annotated[bool, typer.Option("--order", help="Print every rank's actions instead of a timeline.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show the predicted timeline of schedules, in the terminal or as a picture."""
    from testbed import show
    from testbed.progress import Reporter

    plan = _plan(topology, workload, settings)
    lanes = [f"{rank} {node}" for rank, node in enumerate(plan.nodes)]
    with Reporter(quiet=quiet).solving() as watch:
        choices = plan.choose(schedule or [], watch)
        shown = [(choice, plan.generate(choice, watch=watch).schedule) for choice in choices]
    if as_json:
        rows = {c.schedule: [[str(action) for action in row] for row in s.rows] for c, s in shown}
        _emit({"schedules": rows})
    console = Console()
    panels = []
    for choice, generated in shown:
        timeline = plan.predict(choice, generated)
        panels.append((choice.schedule, timeline))
        if as_json:
            continue
        console.print(f"\n[bold]{choice.schedule}[/bold]")
        if order:
            for lane, row in zip(lanes, generated.rows, strict=True):
                console.print(f"{lane}: {' '.join(map(str, row))}", highlight=False, soft_wrap=True)
        else:
            console.print(show.grid(timeline, lanes, console.width), soft_wrap=True)
    if svg is not None:
        from testbed.collect.picture import Panel, draw

        heading = f"{plan.workload.name} on {plan.topology.name}"
        drawn = [Panel(name, [("predicted", timeline)]) for name, timeline in panels]
        draw(drawn, svg, cuts=plan.cuts, lanes=lanes, heading=heading)


@schedule_app.command("compare")
def schedule_compare(
    topology: TopologyFile,
    workload: WorkloadFile,
    schedule: Schedules = None,
    settings: Settings = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Every schedule beside each other: time, bubble by cause, memory, distance from a lower bound. No root."""
    from testbed import show
    from testbed.progress import Reporter
    from testbed.schedule.registry import FAMILIES
    from testbed.schedule_compare import compare_schedules

    plan = _plan(topology, workload, settings)
    listed = {choice.schedule for choice in plan.workload.schedules}
    names = schedule or [name for name, known in FAMILIES.items() if not known.solver or name in listed]
    with Reporter(quiet=quiet).solving() as watch:
        comparison = compare_schedules(plan, plan.choose(names, watch), watch)
    if as_json:
        rows = [row.as_json() for row in comparison.schedules]
        _emit({"schedules": rows, "left_out": comparison.left_out})
        return
    console = _console(150)
    for table in show.causes_tables(plan, comparison, console.width):
        console.print(table)
    for row in comparison.schedules:
        if row.proof is not None:
            console.print(show.proof_line(row.schedule, row.proof), highlight=False)
    for reason in comparison.left_out.values():
        console.print(f"left out: {reason}", highlight=False)
    if len(comparison.schedules) > 1:
        first, second = comparison.schedules[:2]
        gain = second.predicted_s / first.predicted_s - 1
        console.print(f"best: {first.schedule}, {gain:.1%} ahead of {second.schedule}", highlight=False)


@schedule_app.command("export")
def schedule_export(
    topology: TopologyFile,
    workload: WorkloadFile,
    schedule: Annotated[str, typer.Option("--schedule", help="The schedule to write.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; default: stdout.")] = None,
    comms: Annotated[
        bool, typer.Option("--comms", help="compute_comms (with SEND and RECV) for compute_only.")
    ] = False,
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Write a schedule in torch.distributed.pipelining's CSV, for its runtime or torchtitan."""
    from testbed.pipeline.torch_csv import to_csv
    from testbed.progress import Reporter

    plan = _plan(topology, workload, settings)
    with Reporter(quiet=quiet).solving() as watch:
        (choice,) = plan.choose([schedule], watch)
        text = to_csv(plan.generate(choice, watch=watch).schedule, comms=comms)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)


@schedule_app.command("validate")
def schedule_validate(
    topology: TopologyFile,
    workload: WorkloadFile,
    csv: Annotated[Path, typer.Argument(metavar="CSV", help="A schedule in torch's CSV, a row per rank.")],
    settings: Settings = None,
) -> None:
    """Check a schedule in torch's CSV against a plan, and say what it would take."""
    from testbed.model.simulate import simulate
    from testbed.pipeline.torch_csv import from_csv
    from testbed.pipeline.validate import validate

    plan = _plan(topology, workload, settings)
    loaded = from_csv(_read_text(csv), csv.stem)
    problem = plan.problem_for(loaded)
    validate(loaded, problem)
    makespan = float(simulate(problem, loaded, receives=plan.workload.receives).makespans()[0])
    print(f"{csv}: valid; the model says {makespan * 1e3:.3f} ms per iteration")


if __name__ == "__main__":
    main()
