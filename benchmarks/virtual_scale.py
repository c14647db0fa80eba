"""Under the virtual clock: more stages than cores. Repeats, error, wall time and memory per boot, cost per added stage.

    python benchmarks/virtual_scale.py [--stages 8,16,32] [--boots 2] [--record [NAME]]

Two datacenters, one container per stage, 16 microbatches, 1F1B and crosspipe-greedy, 2 measured iterations. Boots run
one after another. Exit code 1 when a repeat differs, a run is not trusted or an error exceeds 0.5 %.
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

from testbed.plan.plan import Clock
from testbed.planning.resolve import load_plan, with_cases, with_clock
from testbed.planning.schedules import choose, make
from testbed.progress import Lines
from testbed.vm import command
from testbed.vm.boot import Boot
from testbed.vm.determinism import fingerprint, nanoseconds

TOPOLOGY = ROOT / "topologies/two-dc-longhaul.yaml"
WORKLOAD = ROOT / "workloads/tiny-gpt-pp8.yaml"
SCHEDULES = ("1f1b", "crosspipe-greedy")
TARGET = 0.005


def settings(stages: int) -> tuple[str, ...]:
    """The shipped files, stretched to that many stages: one layer each."""
    return (
        f"topology.datacenters={{paris: {{nodes: {stages // 2}}}, warsaw: {{nodes: {stages // 2}}}}}",
        f"parallelism.pipeline={stages}",
        f"model.layers={stages}",
        f"memory={stages}",
        "iterations=2",
        "warmup=2",
    )


def main() -> int:
    """Run, print, judge."""
    parser = options.parser(__doc__)
    parser.add_argument("--stages", default="8,16,32")
    parser.add_argument("--boots", type=int, default=2)
    arguments = parser.parse_args()
    reporter = Lines(quiet=True)
    rows, claims = [], []
    walls: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="testbed-") as scratch:
        for stages in map(int, arguments.stages.split(",")):
            prints, errors, trusted = set(), [0.0], True
            boots: list[Boot] = []
            for number in range(arguments.boots):
                directory = Path(scratch) / f"{stages}-{number}"
                plan = load_plan(TOPOLOGY, WORKLOAD, settings=settings(stages))
                choices = choose(plan, SCHEDULES)
                whole = with_cases(plan, choices, make(plan, choices, strict=True).made)
                training = command.Training(with_clock(whole, Clock("virtual")), directory)
                machine = command.choose_machine(Clock("virtual"))
                boot, (document,) = command.train(machine, [training], limit_s=3000, reporter=reporter)
                if document is None:
                    print(f"{stages} stages: the run failed, exit code {boot.ended[0].code}", file=sys.stderr)
                    return 1
                boots.append(boot)
                prints.add(fingerprint(nanoseconds(directory)))
                errors += [row["error"] for row in document["schedules"]]
                trusted &= all(row["trusted"] for row in document["schedules"])
                print(f"{stages} stages, boot {number + 1}: {boot.wall_s:.0f} s", file=sys.stderr, flush=True)
            worst = max(errors, key=abs)
            walls[stages] = statistics.median(boot.wall_s for boot in boots)
            training_s = statistics.median(boot.wall_s - (boot.wall_until("task started") or 0.0) for boot in boots)
            memory_gib = max(boot.peak_memory_kb for boot in boots) / 2**20
            same = len(prints) == 1
            times_s = walls[stages], training_s, statistics.median(boot.cpu_s for boot in boots)
            rows.append(
                (stages, len(boots), f"{worst:+.3%}", *(f"{s:.0f} s" for s in times_s), f"{memory_gib:.2f} GiB")
            )
            got = f"{'identical' if same else 'NOT identical'}, {'' if trusted else 'NOT '}trusted, worst {worst:+.3%}"
            claims.append(
                Claim(
                    f"{stages} stages on this machine, {len(boots)} boots",
                    f"identical, <= {TARGET:.1%}, trusted",
                    f"{got}; {walls[stages]:.0f} s, {memory_gib:.1f} GiB",
                    same and trusted and abs(worst) <= TARGET,
                    abs(worst),
                    "share of the prediction",
                )
            )
    columns = ("stages", "boots", "worst error", "wall per boot", "of it training", "CPU per boot", "peak memory")
    show_table("scale under the virtual clock", columns, rows)
    if len(walls) > 1:
        few, many = min(walls), max(walls)
        print(f"an added stage costs {(walls[many] - walls[few]) / (many - few):.1f} s of wall time per boot")
    return finish(arguments, Topic.TRUTH, claims)


if __name__ == "__main__":
    sys.exit(main())
