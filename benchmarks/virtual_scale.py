"""Under the virtual clock: more stages than cores, and other kernels. Repeats, error, and what a boot costs.

    python benchmarks/virtual_scale.py [--stages 8,16,32] [--boots 2] [--kernels SERIES,...] [--record [NAME]]
    python benchmarks/virtual_scale.py --stages main --kernels 7.2,6.12 --boots 3
    python benchmarks/virtual_scale.py --stages 32 --microbatches 128 --schedules 1f1b --light --boots 1

Two datacenters, one container per stage, 16 microbatches, 1F1B and crosspipe-greedy, 2 measured iterations; `main` is
the main job as it is; --light gives the stages a smaller model, and messages of the same size. Boots run one after
another; kernels take turns, and one that is not built is named and left out. Prints medians over the boots: booting,
importing, training, and a virtual second of it. Exit code 1 when a repeat differs, a run is not trusted or an error
exceeds 0.5 %.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from harness import options
from harness.options import ROOT
from harness.plans import with_every
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.errors import MachineLacks, RunFailed
from testbed.plan.plan import Clock, Plan
from testbed.planning.light import lighter
from testbed.planning.resolve import load_plan
from testbed.progress import Lines
from testbed.vm import command, guest_machine, kernel
from testbed.vm.boot import Boot
from testbed.vm.determinism import fingerprint, nanoseconds

TOPOLOGY = ROOT / "topologies/two-dc-longhaul.yaml"
SCHEDULES = ("1f1b", "crosspipe-greedy")
MAIN = "main"
TARGET = 0.005
LIMIT_S = 3000


class Repeat(NamedTuple):
    """One boot of a plan."""

    boot: Boot
    fingerprint: str
    worst: float
    """Error of a schedule."""
    trusted: bool


def plan_of(stages: str, microbatches: int, schedules: Sequence[str]) -> Plan:
    """The shipped files as they are, or stretched to that many stages: one layer each."""
    if stages == MAIN:
        return with_every(load_plan(TOPOLOGY, ROOT / "workloads/tiny-gpt-pp4.yaml"), schedules)
    settings = (
        f"topology.datacenters={{paris: {{nodes: {int(stages) // 2}}}, warsaw: {{nodes: {int(stages) // 2}}}}}",
        *(f"{field}={stages}" for field in ("parallelism.pipeline", "model.layers", "memory")),
        f"microbatches={microbatches}",
        "iterations=2",
        "warmup=2",
    )
    return with_every(load_plan(TOPOLOGY, ROOT / "workloads/tiny-gpt-pp8.yaml", settings=settings), schedules)


def machines(series: Sequence[str]) -> dict[str, guest_machine.GuestMachine]:
    """By name those of the kernels that are built; of none named, the one that runs take."""
    found = {}
    if not series:
        found[""] = command.choose_machine(Clock("virtual"))
    for name in series:
        try:
            found[name] = guest_machine.time_travel(kernel.require(name), seed=1)
        except MachineLacks as lack:
            print(lack, file=sys.stderr)
    return found


def repeated(machine: guest_machine.GuestMachine, plan: Plan, out: Path) -> Repeat:
    """A boot that trains the plan. Raises RunFailed."""
    boot, (document,) = command.train(
        machine, [command.GuestTraining(plan, out)], limit_s=LIMIT_S, reporter=Lines(quiet=True)
    )
    if document is None:
        raise RunFailed(f"{out.name}: the run failed, exit code {boot.ended[0].code}")
    print(f"{out.name}: {boot.wall_s:.0f} s", file=sys.stderr, flush=True)
    rows = document["schedules"]
    worst = max((row["error"] for row in rows), key=abs)
    return Repeat(boot, fingerprint(nanoseconds(out)), worst, all(row["trusted"] for row in rows))


def phases(boot: Boot) -> dict[str, float]:
    """Wall-clock seconds of a boot's phases, and of one virtual second while the command ran; CPU time of it all."""
    at = {one.report.event: one for one in boot.heard}
    events = ("booted", "imported", "task started", "task ended")
    booted, imported, started, ended = (at[event] for event in events)
    virtual_s = ended.report.time_s - started.report.time_s
    return {
        "boot": booted.wall_s,
        "imports": imported.wall_s - booted.wall_s,
        "command": ended.wall_s - started.wall_s,
        "virtual seconds of it": virtual_s,
        "per virtual second": (ended.wall_s - started.wall_s) / virtual_s,
        "from its start to the end": boot.wall_s - started.wall_s,
        "whole boot": boot.wall_s,
        "CPU time": boot.cpu_s,
    }


def judged(name: str, repeats: Sequence[Repeat], medians: Mapping[str, float]) -> Claim:
    """That boots of one plan are the same, trusted and as predicted."""
    same, trusted = len({one.fingerprint for one in repeats}) == 1, all(one.trusted for one in repeats)
    worst = max((one.worst for one in repeats), key=abs)
    memory_gib = max(one.boot.peak_memory_kb for one in repeats) / 2**20
    got = f"{'identical' if same else 'NOT identical'}, {'' if trusted else 'NOT '}trusted, worst {worst:+.3%}; "
    got += f"{medians['whole boot']:.0f} s, {medians['CPU time']:.1f} s of CPU, {memory_gib:.1f} GiB"
    what, asked = f"{name} on this machine, {len(repeats)} boots", f"identical, <= {TARGET:.1%}, trusted"
    fine = same and trusted and abs(worst) <= TARGET
    return Claim(what, asked, got, fine, abs(worst), "share of the prediction")


def main() -> int:
    """Run, print, judge."""
    parser = options.parser(__doc__)
    parser.add_argument("--stages", type=options.listed(str), default=["8", "16", "32"], help="numbers, or main")
    parser.add_argument("--kernels", type=options.listed(str), default=[], help="their series, as in 7.2")
    parser.add_argument("--boots", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--schedules", type=options.listed(str), default=list(SCHEDULES), help="their names")
    parser.add_argument("--light", action="store_true", help="smaller models, messages of the same size")
    asked = parser.parse_args()
    known, repeats = machines(asked.kernels), defaultdict[tuple[str, str], list[Repeat]](list)
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
        for stages in asked.stages:
            plan = plan_of(stages, asked.microbatches, asked.schedules)
            if asked.light:
                plan, _ = lighter(plan)
            for number, (series, machine) in product(range(asked.boots), known.items()):
                out = Path(scratch) / f"{stages}-{series}-{number}"
                repeats[stages, series].append(repeated(machine, plan, out))
    claims, columns, walls = [], {}, {}
    for (stages, series), found in repeats.items():
        each = [phases(one.boot) for one in found]
        medians = {name: statistics.median(one[name] for one in each) for name in each[0]}
        what = "the main job" if stages == MAIN else f"{stages} stages x {asked.microbatches} microbatches of 1 MB"
        name = f"{what}, Linux {series}" if series else what
        columns[name], walls[stages] = medians, medians["whole boot"]
        claims.append(judged(name, found, medians))
    rows = [(name, *(f"{one[name]:.2f}" for one in columns.values())) for name in next(iter(columns.values()), ())]
    show_table("seconds, medians", ("", *columns), rows)
    sizes = sorted(int(stages) for stages in walls if stages != MAIN)
    if len(sizes) > 1:
        few, many = sizes[0], sizes[-1]
        each_s = (walls[str(many)] - walls[str(few)]) / (many - few)
        print(f"an added stage costs {each_s:.1f} s of wall time per boot")
    return finish(asked, Topic.TRUTH, claims)


if __name__ == "__main__":
    sys.exit(main())
