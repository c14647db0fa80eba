"""Under the virtual clock: all-reduces over a wide area, measured and predicted: two levels, a ring, and gloo's own.

    python benchmarks/collectives.py [--quick] [--members 2,3,4] [--megabytes 1,4,16,64] [--json FILE] [--out DIR]

Two datacenters, 20 ms and 1 Gbit/s apart, with 2, 3 or 4 members in each; one stage per pipeline, so that nothing but
the all-reduce of its gradients crosses. Its time is from the end of the last W to the arrival of the last message.
Prints for every size which algorithm wins; fails where one that is modelled misses its prediction. Gloo's own is not:
beside it stands the approximation of which predictions warn. With two levels up to 96
messages are sent at once inside the datacenters; the guest carries them one after the other, 2 to 3 us each, which is
all that the error of short all-reduces shows.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from testbed.errors import RunFailed
from testbed.plan.plan import Clock, Plan
from testbed.planning.left_out import gloo_all_reduce_s
from testbed.planning.resolve import generate, make_plan, with_cases
from testbed.planning.schedules import choose
from testbed.progress import Lines
from testbed.results.load import load_traces
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.trace.tables import Trace
from testbed.vm import command

ROOT = Path(__file__).parents[1]
ALGORITHMS = ("hierarchical", "ring", "torch")
MODELLED = ("hierarchical", "ring")
DELAY, RATE = "20 ms", "1 Gbit/s"
ROUND_TRIP_S, RATE_BPS = 0.04, 1e9
SCHEDULE = "1f1b"
TARGET = 0.01
LIMIT_S = 5400.0


class Cell(NamedTuple):
    """One all-reduce."""

    members: int
    """In each of the two datacenters."""
    megabytes: int
    algorithm: str

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.algorithm}-2x{self.members}-{self.megabytes}MB"


class Found(NamedTuple):
    """How long it took, in seconds; of gloo's own an approximation in the place of the prediction."""

    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Of the prediction."""
        return self.measured_s / self.predicted_s - 1


def plan_of(cell: Cell) -> Plan:
    """A cell as a plan with one case."""
    replicas = [f"{site}/{node}" for site in ("east", "west") for node in range(cell.members)]
    others = ", ".join(f"[{node}]" for node in replicas[1:])
    topology = {
        "name": "wide-area",
        "datacenters": f"{{east: {{nodes: {cell.members}}}, west: {{nodes: {cell.members}}}}}",
        "links": f"[{{between: [east, west], delay: {DELAY}, rate: {RATE}}}]",
    }
    workload = {
        "parallelism": f"{{pipeline: 1, data: {len(replicas)}}}",
        "model": "{layers: 1, d_model: 16, heads: 2, sequence: 16}",
        "microbatches": "1",
        "microbatch_size": "1",
        "message": "null",
        "memory": "1",
        "placement": f"[{replicas[0]}]",
        "pacing": "{F: 2 ms, I: 2 ms, W: 2 ms}",
        "data_parallel": f"{{sharding: none, algorithm: {cell.algorithm}, parameters: {cell.megabytes} MB, "
        f"replicas: [{others}]}}",
        "warmup": "2",
        "iterations": "1",
    }
    plan = make_plan(
        load_topology(ROOT / "topologies/two-dc-longhaul.yaml", topology),
        load_workload(ROOT / "workloads/tiny-gpt-pp4.yaml", workload),
    )
    choices = choose(plan, [SCHEDULE])
    return with_cases(plan, choices, {choice.label: generate(plan, choice) for choice in choices})


def all_reduce_s(trace: Trace) -> float:
    """From the end of the last W to the arrival of the last message."""
    return float(trace.makespans()[-1]) - float(trace.actions["end_s"].max())


def found_in(cell: Cell, directory: Path) -> Found:
    """What a finished training says."""
    traces = load_traces(directory)
    measured = traces[SCHEDULE, "measured"]
    last = measured.of_iteration(int(measured.iterations()[-1]))
    predicted_s = all_reduce_s(traces[SCHEDULE, "predicted"])
    if cell.algorithm not in MODELLED:
        predicted_s = gloo_all_reduce_s(2 * cell.members, 1e6 * cell.megabytes, ROUND_TRIP_S, RATE_BPS)
    return Found(predicted_s, all_reduce_s(last))


def print_table(console: Console, found: dict[Cell, Found]) -> None:
    """A row for every number of members and bytes."""
    title = f"all-reduce over {DELAY}, {RATE}: measured ms (predicted)"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for column in ("members", "MB", *ALGORITHMS, "fastest", "by"):
        table.add_column(column, justify="right")
    for members, megabytes in dict.fromkeys((cell.members, cell.megabytes) for cell in found):
        times = {name: found[Cell(members, megabytes, name)] for name in ALGORITHMS}
        shown = [f"{1e3 * one.measured_s:.1f} ({1e3 * one.predicted_s:.0f})" for one in times.values()]
        first, *others = sorted(times, key=lambda name: times[name].measured_s)
        ahead = f"{times[others[0]].measured_s / times[first].measured_s:.1f}x"
        table.add_row(f"2 x {members}", str(megabytes), *shown, first, ahead)
    console.print(table)


def main() -> int:
    """Run the grid; 1 when a modelled all-reduce misses its prediction by more than the target, 0 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", default="2,3,4", help="in each datacenter, comma-separated")
    parser.add_argument("--megabytes", default="1,4,16,64", help="of gradients, comma-separated")
    parser.add_argument("--quick", action="store_true", help="2 x 2 members and 1 MB only")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    parser.add_argument("--out", type=Path, default=ROOT / "results/collectives")
    arguments = parser.parse_args()
    asked = ("2", "1") if arguments.quick else (arguments.members, arguments.megabytes)
    members, megabytes = (list(map(int, numbers.split(","))) for numbers in asked)
    cells = [Cell(*one) for one in product(members, megabytes, ALGORITHMS)]
    trainings = [command.Training(plan_of(cell), arguments.out / cell.name) for cell in cells]
    boot, documents = command.train(
        command.choose_machine(Clock("virtual")), trainings, limit_s=LIMIT_S, reporter=Lines(quiet=False)
    )
    if len(documents) < len(cells) or None in documents:
        raise RunFailed(f"{sum(one is None for one in documents) + len(cells) - len(documents)} trainings did not end")
    found = {cell: found_in(cell, arguments.out / cell.name) for cell in cells}
    console = Console(width=80)
    print_table(console, found)
    errors = {cell: abs(one.error) for cell, one in found.items() if cell.algorithm in MODELLED}
    worst = max(errors, key=lambda cell: errors[cell])
    console.print(f"worst error of those that are modelled: {errors[worst]:.3%} ({worst.name}); {boot.wall_s:.0f} s")
    if arguments.json:
        rows = [{**cell._asdict(), **one._asdict()} for cell, one in found.items()]
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return int(errors[worst] > TARGET)


if __name__ == "__main__":
    sys.exit(main())
