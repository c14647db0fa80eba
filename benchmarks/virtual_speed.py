"""Under the virtual clock: what a boot costs, kernel by kernel: booting, importing, and a virtual second of training.

    python benchmarks/virtual_speed.py [--kernels 7.2,6.12] [--boots 3] [--record [NAME]]

The long haul's 1F1B and crosspipe-greedy. The kernels take turns, one boot at a time; medians over the boots. A kernel
that is not built is named and left out. Exit code 1 when a repeat differs, a run is not trusted or an error exceeds
0.5 %.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.errors import MachineLacks
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.progress import Lines
from testbed.vm import command, guest_machine, kernel
from testbed.vm.boot import Boot
from testbed.vm.determinism import fingerprint, nanoseconds

TOPOLOGY = ROOT / "topologies/two-dc-longhaul.yaml"
WORKLOAD = ROOT / "workloads/tiny-gpt-pp4.yaml"
SCHEDULES = ("1f1b", "crosspipe-greedy")
TARGET = 0.005


def phases(boot: Boot) -> dict[str, float]:
    """Wall-clock seconds of a boot's phases, and of one virtual second while the command ran; CPU time of it all."""
    at = {one.report.event: one for one in boot.heard}
    booted, imported, started, ended = (
        at[event] for event in ("booted", "imported torch", "task started", "task ended")
    )
    virtual_s = ended.report.time_s - started.report.time_s
    return {
        "boot": booted.wall_s,
        "imports": imported.wall_s - booted.wall_s,
        "command": ended.wall_s - started.wall_s,
        "virtual seconds of it": virtual_s,
        "per virtual second": (ended.wall_s - started.wall_s) / virtual_s,
        "whole boot": boot.wall_s,
        "CPU time": boot.cpu_s,
    }


def main() -> int:
    """Run, print, judge."""
    parser = options.parser(__doc__)
    parser.add_argument("--kernels", default="7.2,6.12")
    parser.add_argument("--boots", type=int, default=3)
    arguments = parser.parse_args()
    machines = {}
    for series in arguments.kernels.split(","):
        try:
            machines[series] = guest_machine.time_travel(kernel.require(series), seed=1)
        except MachineLacks as lack:
            print(lack, file=sys.stderr)
    boots: dict[str, list[Boot]] = {series: [] for series in machines}
    prints: dict[str, set[str]] = {series: set() for series in machines}
    worst: dict[str, float] = dict.fromkeys(machines, 0.0)
    trusted = True
    plan = load_plan(TOPOLOGY, WORKLOAD)
    choices = choose(plan, SCHEDULES)
    plan = with_cases(plan, choices, make(plan, choices, strict=True).made)
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
        for number in range(arguments.boots):
            for series, chosen in machines.items():
                directory = Path(scratch) / f"{series}-{number}"
                training = command.Training(plan, directory)
                boot, (document,) = command.train(chosen, [training], limit_s=900, reporter=Lines(quiet=True))
                if document is None:
                    print(f"{series}: the run failed, exit code {boot.ended[0].code}", file=sys.stderr)
                    return 1
                boots[series].append(boot)
                prints[series].add(fingerprint(nanoseconds(directory)))
                worst[series] = max([worst[series], *(abs(row["error"]) for row in document["schedules"])])
                trusted &= all(row["trusted"] for row in document["schedules"])
    claims = []
    for series, of_series in boots.items():
        each = [phases(boot) for boot in of_series]
        medians = {name: statistics.median(one[name] for one in each) for name in each[0]}
        show_table(f"Linux {series}, medians", ("phase", "seconds"), [(n, f"{s:.2f}") for n, s in medians.items()])
        same = len(prints[series]) == 1
        got = f"{'identical' if same else 'NOT identical'}, worst error {worst[series]:.4%}"
        got += f", {medians['CPU time']:.1f} s of CPU each" + ("" if trusted else ", NOT trusted")
        fine = same and trusted and worst[series] <= TARGET
        claim = f"the same boot {len(of_series)} times, Linux {series}"
        claims.append(Claim(claim, f"identical, <= {TARGET:.1%}, trusted", got, fine, medians["CPU time"], "s"))
    return finish(arguments, Topic.SPEED, claims)


if __name__ == "__main__":
    sys.exit(main())
