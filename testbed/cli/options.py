"""What several commands of the command line share: their options, and how they read and print."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.text import Text

from testbed import files
from testbed.errors import BadInput
from testbed.lab.host_settings import HostPriority
from testbed.units import SIZE, parse

if TYPE_CHECKING:
    from testbed.routing.planner import Reach

AUTO_SHAPER, NETEM = "auto", "netem"


def _known_shaper(name: str) -> str:
    """The shaper's name, or FILE.py:NAME with the whole path: a guest sees that file at the same place."""
    if name == AUTO_SHAPER:
        return name
    from testbed.lab.shaping import anywhere

    return anywhere(name)


def drawable(picture: Path | None, option: typer.CallbackParam) -> Path | None:
    """The file that a picture is drawn into, which other work comes before.

    Raises BadInput for a name that is of no format we draw, or where no file can be written.
    """
    formats = {"--svg": (".svg",), "--html": (".html",)}.get(option.opts[0], (".svg", ".png"))
    if picture is not None and picture.suffix not in formats:
        raise BadInput.of(option.opts[0], "file", str(picture), f"a name that ends in {' or '.join(formats)}")
    if picture is not None:
        files.require_writable(picture, option.opts[0])
    return picture


class ClockName(StrEnum):
    """What makes time pass."""

    real = "real"
    virtual = "virtual"


def _schedule_names(begun: str) -> list[str]:
    """What a shell offers for a schedule that is being typed."""
    from testbed.planning.resolve import BEST
    from testbed.schedule.registry import FAMILIES

    return [name for name in (BEST, *FAMILIES) if name.startswith(begun)]


def _settable_fields(begun: str) -> list[str]:
    """What a shell offers for a setting that is being typed: fields of a workload, then those of a topology alone."""
    from testbed.spec.topology import Topology
    from testbed.spec.workload import Workload

    names = [f"{name}=" for name in Workload.model_fields]
    names += [f"{name}." for name in Topology.model_fields if name not in Workload.model_fields]
    return [name for name in names if name.startswith(begun)]


def topology_names(begun: str) -> list[str]:
    """What a shell offers for a topology that is being typed; where it is nothing, the shell offers files."""
    from testbed.spec.presets import TOPOLOGIES

    return _names_and_files(TOPOLOGIES, begun)


def workload_names(begun: str) -> list[str]:
    """The same for a workload."""
    from testbed.spec.presets import WORKLOADS

    return _names_and_files(WORKLOADS, begun)


def study_names(begun: str) -> list[str]:
    """The same for a study."""
    from testbed.spec.presets import STUDIES

    return _names_and_files(STUDIES, begun)


def _names_and_files(kind: str, begun: str) -> list[str]:
    from testbed.spec.presets import preset_files

    here = sorted(path.name for path in Path().iterdir() if path.suffix in (".yaml", ".yml", ".json"))
    return [name for name in (*preset_files(kind), *here) if name.startswith(begun)]


TOPOLOGY_HELP = "A file, or a preset's name such as two-dc-metro (`testbed presets` lists them)."
WORKLOAD_HELP = "A file, or a preset's name such as tiny-gpt-pp4."
TopologyFile = Annotated[Path, typer.Argument(metavar="TOPOLOGY", help=TOPOLOGY_HELP, autocompletion=topology_names)]
WorkloadFile = Annotated[Path, typer.Argument(metavar="WORKLOAD", help=WORKLOAD_HELP, autocompletion=workload_names)]
_WORKLOADS = typer.Argument(
    metavar="WORKLOAD",
    help="Files, or presets' names such as tiny-gpt-pp4, each a job of its own.",
    autocompletion=workload_names,
)
WorkloadFiles = Annotated[list[Path], _WORKLOADS]
MoreWorkloads = Annotated[list[Path] | None, _WORKLOADS]
TopologyOrPlan = Annotated[
    Path,
    typer.Argument(
        metavar="TOPOLOGY|PLAN",
        help="A topology (a file or a preset's name), or plan.json or a results directory with one.",
        autocompletion=topology_names,
    ),
]
Schedules = Annotated[
    list[str] | None,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="Only this schedule: a label, a family, FILE.py:NAME or FILE.csv (repeatable).",
        autocompletion=_schedule_names,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a field of the workload or the topology: microbatches=16, "
        "links.0.delay=5ms, topology.name=x, schedules.0.X=1 (X of the first schedule).",
        autocompletion=_settable_fields,
    ),
]
WorkloadSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the workload: microbatches=16."),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run the Python code that a plan.json brings along without asking."),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="What is not as asked is an error: a schedule that does not fit (else left out), "
        "a link that is not as the topology says (else the run is untrusted).",
    ),
]
ELEPHANTS = "1 MB"
"""What `--elephants-from` is where nobody says otherwise: routing.planner.ELEPHANT_BYTES."""


def _policy_names(begun: str) -> list[str]:
    """What a shell offers for a routing policy that is being typed."""
    from testbed.routing.policies import POLICIES

    return [name for name in POLICIES if name.startswith(begun)]


_POLICY_HELP = "A routing policy's name or FILE.py:NAME, with options as in ecmp,seed=3"
_POLICY = "NAME[,OPTION=VALUE]"
Policies = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar=_POLICY, help=f"{_POLICY_HELP} (repeatable).", autocompletion=_policy_names),
]
ElephantsFrom = Annotated[
    str | None,
    typer.Option(
        "--elephants-from",
        metavar="SIZE",
        help="Bytes in an iteration from which a policy routes a flow; smaller ones take the default route. "
        f"Default: {ELEPHANTS}.",
    ),
]
Detour = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=8,
        metavar="LINKS",
        help="How many links a route may have more than the shortest one; default: 1.",
    ),
]


class Enforcement(StrEnum):
    """What has flows take their routes in a lab."""

    rules = "rules"
    ports = "ports"


Enforce = Annotated[
    Enforcement | None,
    typer.Option(
        help="rules: every flow that leaves its default route is pinned in the routers; ports: nodes use ports that "
        "the routers' own hash sends where each flow is to go, and rules do the rest; default: rules, or the plan's.",
    ),
]
BackgroundFile = Annotated[
    Path | None,
    typer.Option(
        "--background",
        metavar="FILE",
        help="Traffic beside the jobs, from CSV, beside the topology's `background`: from,to,rate, a row for each pair "
        "of datacenters that has some; with a column `at`, from when on.",
    ),
]
Show = Annotated[
    list[Path] | None,
    typer.Option(
        "--show",
        metavar="DIR",
        help="A directory that the code of a job may read, under its own path: else homes and temporary directories "
        "are hidden from it. Repeatable.",
    ),
]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="TEXT",
        help="What happens while jobs train, beside the topology's `events`: `link NAME rate 60 % at "
        "iteration 4`, `link NAME delay 12 ms at iteration 4 + 120 ms`, `link NAME down for 30 ms then delay 9 ms at "
        "3.2 s`, `datacenter NAME down for 8 s at iteration 2`, `rank 2 slower x1.5 at iteration 4`; `A -> B` behind a "
        "link's name means one direction. "
        "Repeatable.",
    ),
]
Lose = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME@K",
        help="A switch or link that is gone after K measured iterations of every schedule: the policy chooses again, "
        "of the routes that are left (without a policy, flows that crossed it take the default ones). Repeatable.",
    ),
]
Lost = Annotated[
    list[str] | None,
    typer.Option("--lose", metavar="NAME", help="A switch or link that is not there. Repeatable."),
]
Arrive = Annotated[
    list[str] | None,
    typer.Option(
        metavar="JOB@K",
        help="A job that begins to train after K measured iterations of the others: the policy chooses again for all "
        "that are there (without a policy, its flows take default routes). Repeatable.",
    ),
]
Depart = Annotated[
    list[str] | None,
    typer.Option(
        metavar="JOB@K",
        help="A job that trains no longer after K measured iterations: the policy chooses again. Repeatable.",
    ),
]
Swap = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL@K",
        help="The job goes on with this one of its schedules after K measured iterations, with the weights that it "
        "has; it begins with the first one. Repeatable.",
    ),
]
Adapt = Annotated[
    str | None,
    typer.Option(
        metavar="CONTROLLER",
        help="Begin with the first schedule, and swap to the others when the controller decides so, which sees only "
        "the job's own times: ski-rental, never or FILE.py:NAME; options as in ski-rental,dwell=5. Of several jobs, "
        "with --vary starts=N, shift when they begin.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        help="What the job that adapts may change beside its schedule: microbatches=4,16 (of as many samples in all), "
        "routes=2 (those of least delay between two datacenters), stages (on other ranks; weights move). Repeatable. "
        "Of several jobs starts=8 alone: when they begin, looked for at 8 places to either side.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="OPTIONS",
        help="How the job saves its state, and what that takes: every=5,save=200 ms,restart=2 s (iterations from one "
        "to the next, slots of saving and of a restart); every=10,save=0,restart=2 s is what it is without; "
        "notice=1 s (until who is cut off is given up). "
        "to=neighbour: over the links into the memory of a neighbour rank; then disk=20,disk-save=1 s (every 20th "
        "iteration's on disk as well, which takes so much more) and state=2 MB (of a rank, padding included).",
    ),
]
ElasticOption = Annotated[
    str | None,
    typer.Option(
        "--elastic",
        metavar="OPTIONS",
        help="In place of --checkpoint, of a job with replicas: when one is lost the others go on, with a batch "
        "smaller by its samples, and only the iteration under way is trained again. restart=2 s (to begin it again); "
        "repair=60 s (so long after its failure a replica can be back; it gets its state from another one over the "
        "links): never without. With ZeRO-1 (the default) every=2: each shard of the optimizer is copied into the next "
        "replica's memory every 2 iterations (1 without it), and training goes on from there.",
    ),
]
Failures = Annotated[
    list[str] | None,
    typer.Option(
        "--failure",
        metavar="TEXT",
        help="A worker that ends without a word, of the job's own time: `rank 2 at 3.2 s`; all of a place at once: "
        "`node oslo/1 at 3.2 s`, `datacenter oslo at 3.2 s`. What they hold in memory is gone. All workers are started "
        "anew then, and go on from the last checkpoint that is left. `datacenter oslo cut off at 3.2 s for 2 s`: its "
        "links carry nothing, and all workers give up and are started anew when it is back. Repeatable.",
    ),
]
ChaosOption = Annotated[
    str | None,
    typer.Option(
        "--chaos",
        metavar="OPTIONS",
        help="The same by chance: mtbf=60 s,seed=3 (mean time between failures of the whole job), of=ranks, "
        "of=nodes or of=datacenters, or of=cuts,for=2 s: datacenters that are cut off.",
    ),
]


class RoundsName(StrEnum):
    """When a job begins its next iteration."""

    together = "together"
    free = "free"


Rounds = Annotated[
    RoundsName | None,
    typer.Option(
        help="together: an iteration of every job begins at once, when all have ended theirs (default); free: each job "
        "begins its next one when it is done itself.",
    ),
]
Alone = Annotated[
    bool,
    typer.Option(
        "--alone",
        help="Of several jobs, train each by itself too, on the same routes: what the others cost it, measured.",
    ),
]
Robust = Annotated[
    bool, typer.Option("--robust", help="Choose `best` by the 95th percentile over drawn slots, not by their medians.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
VmOption = Annotated[bool, typer.Option("--vm", help="In Debian's User-Mode Linux, which has netem anywhere.")]
ClockOption = Annotated[ClockName, typer.Option(help="virtual: in a guest whose time does not depend on this machine.")]
MOST_SEED = 2**31 - 1
SeedOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        max=MOST_SEED,
        help="Of the virtual clock's kernel: ports, hashes, sequences; default: 1, or the plan's.",
    ),
]


def _wall_limit(default_s: float) -> Any:
    return typer.Option(
        min=1,
        max=604_800,
        metavar="SECONDS",
        help=f"Wall-clock seconds, 1 to 604800 (a week), after which a guest is given up; default: {default_s:g}.",
    )


WALL_LIMIT_S, BASELINES_LIMIT_S, PLANS_LIMIT_S, POINTS_LIMIT_S = 900.0, 1800.0, 3600.0, 5400.0
"""Of a guest that trains one plan, several baselines, several plans, and points of a map."""
WallLimit = Annotated[float | None, _wall_limit(WALL_LIMIT_S)]
WallLimitOfBaselines = Annotated[float | None, _wall_limit(BASELINES_LIMIT_S)]
WallLimitOfPlans = Annotated[float | None, _wall_limit(PLANS_LIMIT_S)]
WallLimitOfPoints = Annotated[float | None, _wall_limit(POINTS_LIMIT_S)]
ShaperOption = Annotated[
    str,
    typer.Option(
        "--shaper",
        metavar="SHAPER",
        callback=_known_shaper,
        help="netem, relay or FILE.py:NAME; auto: netem where the kernel has it and links do not change, else relay.",
    ),
]

HostPriorityOption = Annotated[
    HostPriority | None,
    typer.Option(
        "--host-priority",
        help="on: while a lab lives, idle spinners and real-time workers where the machine lets it; default: on.",
    ),
]


Iterations = Annotated[
    int | None, typer.Option(min=1, max=100_000, metavar="N", help="Measured iterations; default: the workload's.")
]
Light = Annotated[
    bool,
    typer.Option(
        "--light", help="On the virtual clock: train smaller models with the same messages, in the same time: less CPU."
    ),
]
SchedulesFrom = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Take schedules from an earlier run's schedules.json; others are generated."),
]


def in_sandbox(body: Callable[[], int], *, interactive: bool = False) -> int:
    """Run `body` in namespaces and with temporary files of its own; returns its exit code. Raises MachineLacks."""
    from testbed.lab.sandbox import run_with_own_files

    return run_with_own_files(body, interactive=interactive)


def stdout_console(otherwise: int) -> Console:
    """Stdout, as wide as the terminal or as COLUMNS says; else `otherwise` columns. With --format, its tables so."""
    from testbed.cli.table_formats import console_for_tables

    return console_for_tables() or Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else otherwise)


def seed_of(given: int | None, *, virtual: bool, otherwise: int = 1) -> int:
    """The seed of the virtual clock's kernel. Raises BadInput for one that nothing would use."""
    if given is not None and not virtual:
        raise BadInput.of(
            "--seed", "option", given, "--clock virtual beside it (the seed of training is `seed` in the workload)"
        )
    return otherwise if given is None else given


def in_guest(vm: bool, *, virtual: bool) -> bool:
    """Whether a guest measures. Raises BadInput for `vm` beside the virtual clock, whose guest is another one."""
    if vm and virtual:
        raise BadInput.of("--vm", "clock", "virtual", "real (--clock real): the guest of --vm keeps real time")
    return vm or virtual


def wall_limit_of(given: float | None, *, guest: bool, otherwise: float = WALL_LIMIT_S) -> float:
    """Seconds that a guest may take. Raises BadInput for a limit that nothing would keep."""
    if given is not None and not guest:
        raise BadInput.of("--wall-limit", "option", given, "--clock virtual or --vm beside it: nothing else has one")
    return otherwise if given is None else given


def only_beside_measure(measure: int, given: Mapping[str, object], option: str = "--measure") -> None:
    """Raises BadInput for an option, by name, that only measuring uses, where nothing is measured; `option` asks for
    that.
    """
    for name, value in given.items():
        if value is not None and not measure:
            raise BadInput.of(name, "option", value, f"{option} N beside it: nothing else uses it")


def host_priority_of(given: HostPriority | None, *, guest: bool) -> HostPriority:
    """What a lab does to this machine. Raises BadInput where there is only a guest, which leaves it alone."""
    if given is not None and guest:
        expected = "a lab on this machine: no --clock virtual, no --vm beside it"
        raise BadInput.of("--host-priority", "option", given.value, expected)
    return given or HostPriority.on


def show(console: Console, *parts: RenderableType) -> None:
    """Print tables below each other, and text in lines of its own, nothing of it as markup."""
    console.print(Group(*(Text(part) if isinstance(part, str) else part for part in parts)))


def warnings(lines: Iterable[str]) -> list[str]:
    """Lines that begin with what they are."""
    return [f"warning: {line}" for line in lines]


def emit(document: Mapping[str, Any]) -> None:
    """JSON on stdout, where progress never goes."""
    sys.stdout.write(files.indented_json(document) + "\n")


def reach_of(elephants_from: str | None, detour: int | None) -> Reach:
    """What policies route, as options say or as usual. Raises BadInput."""
    from testbed.routing.planner import DETOUR, Reach

    least = quantity("--elephants-from", ELEPHANTS if elephants_from is None else elephants_from, SIZE, "a size")
    return Reach(least, DETOUR if detour is None else detour)


def quantity(option: str, text: str, units: dict[str, float], kind: str) -> float:
    """What an option says that takes a value with a unit. Raises BadInput."""
    try:
        return parse(text, units, kind)
    except ValueError as error:
        raise BadInput.of(option, "option", text, str(error)) from error


def read_text(path: Path) -> str:
    """What a file of a reasonable size holds. Raises BadInput."""
    return files.read_text(path, files.MOST_JSON_BYTES)
