"""Under the virtual clock: more stages than cores. Repeats, error, wall time and memory per boot, cost per added stage.

    python benchmarks/virtual_scale.py [--stages 8,16,32] [--boots 2]

Two datacenters, one container per stage, 16 microbatches, 1F1B and crosspipe-greedy, 2 measured iterations. Boots run
one after another. Exit code 1 when a repeat differs, a run is not trusted or an error exceeds 0.5 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from testbed.plan.plan import Clock
from testbed.planning.resolve import load_plan, with_cases, with_clock
from testbed.planning.schedules import choose, make
from testbed.progress import Lines
from testbed.vm import command
from testbed.vm.boot import Boot
from testbed.vm.determinism import fingerprint, nanoseconds

ROOT = Path(__file__).parents[1]
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="8,16,32")
    parser.add_argument("--boots", type=int, default=2)
    arguments = parser.parse_args()
    reporter = Lines(quiet=True)
    table = Table(title="scale under the virtual clock", title_justify="left")
    for column in (
        "stages",
        "boots",
        "identical",
        "worst error",
        "trusted",
        "wall per boot",
        "of it training",
        "CPU per boot",
        "peak memory",
    ):
        table.add_column(column, justify="right")
    good = True
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
            good &= len(prints) == 1 and trusted and abs(worst) <= TARGET
            walls[stages] = statistics.median(boot.wall_s for boot in boots)
            training_s = statistics.median(boot.wall_s - (boot.wall_until("task started") or 0.0) for boot in boots)
            table.add_row(
                str(stages),
                str(len(boots)),
                "yes" if len(prints) == 1 else f"NO: {len(prints)} different",
                f"{worst:+.3%}",
                "yes" if trusted else "NO",
                f"{walls[stages]:.0f} s",
                f"{training_s:.0f} s",
                f"{statistics.median(boot.cpu_s for boot in boots):.0f} s",
                f"{max(boot.peak_memory_kb for boot in boots) / 2**20:.2f} GiB",
            )
    console = Console(width=140)
    console.print(table)
    if len(walls) > 1:
        few, many = min(walls), max(walls)
        console.print(f"an added stage costs {(walls[many] - walls[few]) / (many - few):.1f} s of wall time per boot")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
