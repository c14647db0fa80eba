"""`testbed run`: a plan measured, made now from its files or read from plan.json."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed import extras
from testbed.cli import options
from testbed.cli import plan as planning
from testbed.errors import BadInput, ExitCode, RunFailed
from testbed.lab import capabilities, privileges
from testbed.lab.host_settings import HostPriority
from testbed.lab.shown import require_showable
from testbed.thresholds import TRAIN_AGAIN

if TYPE_CHECKING:
    from testbed.plan.plan import Plan
    from testbed.progress import Reporter


@dataclass(frozen=True)
class Request:
    """How a plan is to be run."""

    directory: Path
    overwrite: bool
    shaper: str
    host_priority: HostPriority
    strict: bool
    control: bool
    vm: bool
    wall_limit_s: float
    picture: bool
    as_json: bool
    quiet: bool
    shown: tuple[str, ...] = ()
    """Directories that a job's code may read."""
    again: int | None = None
    """How often at most a case is trained again where this machine was busy otherwise; None: as often as usual."""


_Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Results directory; default: in results/, by names and time.")
]
_Clock = Annotated[
    options.ClockName | None,
    typer.Option(help="virtual: in a guest whose time does not depend on this machine; default: the plan's."),
]
_Control = Annotated[
    bool,
    typer.Option("--control", help="Train every case once more with links that are not shaped: to tell the machine's."),
]
_Again = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=100,
        metavar="N",
        help=f"Where the machine was busy otherwise, train a schedule again, so often at most; default: {TRAIN_AGAIN}.",
    ),
]


def run(
    what: options.TopologyOrPlan,
    workloads: options.MoreWorkloads = None,
    schedule: options.Schedules = None,
    iterations: options.Iterations = None,
    out: _Out = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the results in --out.")] = False,
    shaper: options.ShaperOption = options.AUTO_SHAPER,
    host_priority: options.HostPriorityOption = None,
    strict: options.StrictOption = False,
    control: _Control = False,
    again: _Again = None,
    schedules_from: options.SchedulesFrom = None,
    policy: options.Policies = None,
    elephants_from: options.ElephantsFrom = None,
    detour: options.Detour = None,
    enforce: options.Enforce = None,
    background: options.BackgroundFile = None,
    event: options.Events = None,
    lose: options.Lose = None,
    arrive: options.Arrive = None,
    depart: options.Depart = None,
    swap: options.Swap = None,
    adapt: options.Adapt = None,
    vary: options.Vary = None,
    rounds: options.Rounds = None,
    checkpoint: options.Checkpoint = None,
    elastic: options.ElasticOption = None,
    failure: options.Failures = None,
    chaos: options.ChaosOption = None,
    alone: options.Alone = False,
    vm: options.VmOption = False,
    clock: _Clock = None,
    seed: options.SeedOption = None,
    wall_limit: options.WallLimit = None,
    picture: Annotated[bool, typer.Option(help="Draw timeline.svg; the data files hold the same.")] = True,
    light: options.Light = False,
    trust: options.Trust = False,
    show: options.Show = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train across emulated datacenters under each schedule and compare with the model.

    With one argument, repeat a plan: plan.json, or results. Several workloads are jobs that train at the same time.
    """
    more = lose, arrive, depart, swap, alone, event, adapt, False, rounds, checkpoint, failure, chaos, background, vary
    asked = planning.PlanOptions(schedule, schedules_from, policy, elephants_from, detour, *more, elastic)
    plan = planning.unfinished_plan(*_no_picture(what, workloads), asked, settings, iterations, trust=trust)
    plan = planning.enforced(_clocked(plan, clock, seed), enforce)
    guest = options.in_guest(vm, virtual=plan.clock.name == "virtual")
    limit_s = options.wall_limit_of(wall_limit, guest=guest)
    priority = options.host_priority_of(host_priority, guest=guest)
    _require_possible(plan, control=control, again=again, light=light, guest=guest, elastic=elastic)
    directory = _place(plan, out, overwrite=overwrite)
    shown = require_showable(show or (), directory)
    plan, said = _lightened(*planning.to_train(plan, asked, what, workloads, quiet=quiet, strict=strict), light=light)
    where = directory, overwrite, shaper, priority, strict, control, vm, limit_s
    raise typer.Exit(execute(plan, Request(*where, picture, as_json, quiet, shown, again), said))


def _clocked(plan: Plan, clock: options.ClockName | None, seed: int | None) -> Plan:
    """The plan on the clock that is asked for, else on its own."""
    from testbed.plan.plan import Clock as PlannedClock
    from testbed.planning.resolve import with_clock

    name = plan.clock.name if clock is None else clock.value
    number = options.seed_of(seed, virtual=name == "virtual", otherwise=plan.clock.seed)
    return with_clock(plan, PlannedClock(name, number))


def _no_picture(what: Path, workloads: list[Path] | None) -> tuple[Path, list[Path] | None]:
    """The files. Raises BadInput for a picture's name among them: `--picture` of other commands takes one."""
    for word in (what, *(workloads or ())):
        if word.suffix in (".svg", ".png"):
            raise BadInput.of("--picture", "file", str(word), "none: a run draws timeline.svg beside its results")
    return what, workloads


def _require_possible(
    plan: Plan, *, control: bool, again: int | None, light: bool, guest: bool, elastic: str | None
) -> None:
    """Raises BadInput for what cannot be trained, a control where time is a guest's, jobs run freely or replicas may be
    lost (`elastic`: as the option has it), a number of times `again` where nothing is trained again, or light models
    where time is not virtual; MachineLacks."""
    from testbed.planning.resolve import require_trainable

    require_trainable(plan)
    if control and plan.rounds == "free":
        raise BadInput.of("--control", "option", "--rounds free", "jobs that train in rounds: a control goes by them")
    if control and guest:
        expected = "a run on this machine's clock: virtual time does not depend on the machine"
        raise BadInput.of("--control", "option", "in a guest", expected)
    if control and (elastic is not None or (plan.recovery is not None and plan.recovery.elastic is not None)):
        raise BadInput.of("--control", "option", "--elastic", "a job that ends with the replicas that it began with")
    if again is not None and guest:
        expected = "a run on this machine: a guest does not see what disturbs it"
        raise BadInput.of("--again", "option", "in a guest", expected)
    if again and plan.adaptation is not None:
        raise BadInput.of("--again", "option", "--adapt", "0: what a controller has learned is of one training")
    if light and plan.clock.name != "virtual":
        raise BadInput.of("--light", "clock", plan.clock.name, "virtual: another clock sees what a model computes")
    extras.require("train")
    privileges.require(capabilities.OF_GUESTS if guest else capabilities.OF_LABS)
    if guest:
        from testbed.vm.command import require_no_limits

        require_no_limits(plan)


def _lightened(plan: Plan, remarks: tuple[str, ...], *, light: bool) -> tuple[Plan, tuple[str, ...]]:
    """The plan with light models where they are asked for, and with what is said of them."""
    if not light:
        return plan, remarks
    from testbed.planning.light import lighter

    made, said = lighter(plan)
    return made, (*remarks, *said)


def _place(plan: Plan, out: Path | None, *, overwrite: bool) -> Path:
    """Where the results of a plan go. Raises BadInput where they cannot."""
    from testbed.results.destination import require_place

    directory = out or named_place("-".join([plan.network.name, *(job.name for job in plan.jobs)]))
    require_place(directory, overwrite=overwrite)
    return directory


def named_place(name: str) -> Path:
    """Where results go if nobody says: by name and time."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("results") / f"{name}-{stamp}"


def execute(plan: Plan, request: Request, remarks: Sequence[str] = ()) -> int:
    """Run the plan where it belongs, after `remarks` on it; returns the exit code. Raises what a run raises."""
    from testbed.cli import answer  # noqa: F401 - now: after Ctrl-C there is no time for it
    from testbed.cli.progress import Terminal
    from testbed.planning.resolve import with_shaper

    reporter = Terminal(quiet=request.quiet)
    for reason in plan.left_out.values():
        reporter.say(f"left out: {reason}")
    for remark in remarks:
        reporter.say(remark)
    plan = with_shaper(plan, request.shaper)
    _require_foretold(plan)
    if request.vm or plan.clock.name == "virtual":
        return _in_guest(plan, request, reporter)
    return _here(plan, request, reporter)


def _require_foretold(plan: Plan) -> None:
    """Raises BadInput, before anything starts, where only the prediction can tell that a plan cannot be played."""
    if plan.recovery is not None:
        from testbed.goodput.recovering_plan import require_replicas_left

        require_replicas_left(plan, "plan", "recovery.failures")
    if not plan.events:
        return
    from testbed.planning.prediction import predict_training

    for case in plan.cases:
        if all(job.rows is not None for job in case.jobs):
            predict_training(plan, case)


def _in_guest(plan: Plan, request: Request, reporter: Reporter) -> int:
    from testbed.results.destination import results_directory
    from testbed.vm import command

    machine = command.choose_machine(plan.clock)
    with results_directory(request.directory, overwrite=request.overwrite) as working:
        training = command.GuestTraining(plan, working, request.shaper, strict=request.strict, shown=request.shown)
        try:
            boot, _ = command.train(machine, [training], limit_s=request.wall_limit_s, reporter=reporter)
        except (RunFailed, KeyboardInterrupt):
            show_finished(plan, working, request)
            raise
        show_ended(plan, working, request, reporter, boot.ended[0].code)
    return boot.ended[0].code


def _here(plan: Plan, request: Request, reporter: Reporter) -> int:
    from testbed.lab.machine_witness import MachineWitness
    from testbed.results.destination import results_directory

    with (
        results_directory(request.directory, overwrite=request.overwrite) as working,
        MachineWitness() as witness,
    ):

        def body() -> int:
            from testbed.session.machine_report import this_machine
            from testbed.session.run import SessionOptions
            from testbed.session.run import run as run_plan

            how = SessionOptions(
                working,
                request.shaper,
                this_machine(),
                witness,
                request.host_priority,
                strict=request.strict,
                control=request.control,
                again=TRAIN_AGAIN if request.again is None else request.again,
                shown=request.shown,
            )
            document = run_plan(plan, how, reporter)
            return ExitCode.OK if all(row["trusted"] for row in document["schedules"]) else ExitCode.UNTRUSTED

        code = options.in_sandbox(body)
        show_ended(plan, working, request, reporter, code)
        return code


def show_ended(plan: Plan, working: Path, request: Request, reporter: Reporter, code: int) -> None:
    """Of a run that ended with `code`: draw what lies in `working`, print it under the name of the directory asked for.

    What is printed is what the files say, as `testbed report` prints it.
    """
    if code == ExitCode.RUN_FAILED:
        show_finished(plan, working, request)
    if code not in (ExitCode.OK, ExitCode.UNTRUSTED):
        return
    pages = 0
    if request.picture:
        from testbed.results.destination import PICTURE
        from testbed.results.timeline_picture import draw_run

        with reporter.step("drawing timeline.svg"):
            pages = len(draw_run(working, working / PICTURE))
        _draw_adaptation(working)
    _print_files(working, request, request.directory, pages)


def _draw_adaptation(working: Path) -> None:
    """Of a run whose job adapted: its iterations beside those of a job that does not, and of an oracle."""
    from testbed.results.destination import ADAPTATION_PICTURE
    from testbed.results.load import load_run

    comparison = load_run(working).comparison
    if comparison.get("adaptation"):
        from testbed.results.adaptation_drawing import draw_adaptation

        heading = f"{comparison['name']}, {comparison['adaptation']['controller']}"
        draw_adaptation(comparison["adaptation"], heading, working / ADAPTATION_PICTURE)


def _print_files(working: Path, request: Request, named: Path, pages: int) -> int:
    """The answer of the run whose files lie in `working`, called `named`; returns how many cases it has."""
    from testbed.cli.answer import print_answer
    from testbed.results.load import load_run

    found = load_run(working)
    if not request.as_json:
        print_answer(options.stdout_console(140), found, named, pages=pages)
    elif found.schedules:
        options.emit(found.comparison)
    return len(found.schedules)


def show_finished(plan: Plan, working: Path, request: Request) -> None:
    """Of a run that ended early: the answer of the schedules that it finished, and where what it measured is."""
    from testbed.results.destination import COMPARISON

    finished = _print_files(working, request, working, 0) if (working / COMPARISON).is_file() else 0
    total = len(plan.cases)
    print(f"{finished} of {total} schedules finished; what was measured is in {working}/", file=sys.stderr)
