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

import json
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

from harness import boots, options
from harness.options import ROOT
from harness.plans import with_every
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.plan.plan import Plan
from testbed.planning.left_out import gloo_all_reduce_s
from testbed.planning.resolve import make_plan
from testbed.results.load import load_traces
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.trace.tables import Trace

ALGORITHMS = ("hierarchical", "ring", "torch")
MODELLED = ("hierarchical", "ring")
DELAY, RATE = "20 ms", "1 Gbit/s"
ROUND_TRIP_S, RATE_BPS = 0.04, 1e9
SCHEDULE = "1f1b"
TARGET = 0.01


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
    return with_every(plan, [SCHEDULE])


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


def show(found: dict[Cell, Found]) -> Claim:
    """Print a row for every number of members and bytes; which algorithm wins."""
    rows, ahead, wins = [], [], dict.fromkeys(ALGORITHMS, 0)
    for members, megabytes in dict.fromkeys((cell.members, cell.megabytes) for cell in found):
        times = {name: found[Cell(members, megabytes, name)] for name in ALGORITHMS}
        shown = [f"{1e3 * one.measured_s:.1f} ({1e3 * one.predicted_s:.0f})" for one in times.values()]
        first, second, *_ = sorted(times, key=lambda name: times[name].measured_s)
        wins[first] += 1
        ahead.append(times[second].measured_s / times[first].measured_s)
        rows.append((f"2 x {members}", megabytes, *shown, first, f"{ahead[-1]:.1f}x"))
    title = f"all-reduce over {DELAY}, {RATE}: measured ms (predicted)"
    show_table(title, ("members", "MB", *ALGORITHMS, "fastest", "by"), rows)
    got = ", ".join(f"{name} {count}" for name, count in wins.items() if count)
    got += f" of {len(rows)}, by {min(ahead):.1f} to {max(ahead):.1f} times"
    return Claim("all-reduces over a wide area: the fastest", "(report)", got, value=statistics.median(ahead))


def claim_of(algorithm: str, found: dict[Cell, Found]) -> Claim:
    """That what is modelled takes as long as predicted."""
    errors = {cell: abs(one.error) for cell, one in found.items() if cell.algorithm == algorithm}
    worst = max(errors, key=lambda cell: errors[cell])
    got, fine = f"worst {errors[worst]:.3%} ({worst.name})", errors[worst] <= TARGET
    return Claim(f"all-reduce, {algorithm}", f"<= {TARGET:.0%}", got, fine, errors[worst], "share of the prediction")


def main() -> int:
    """Run the grid; 1 when a modelled all-reduce misses its prediction by more than the target, 0 otherwise."""
    parser = options.parser(__doc__)
    numbers = options.listed(int)
    parser.add_argument("--members", type=numbers, default=[2, 3, 4], help="in each datacenter, comma-separated")
    parser.add_argument("--megabytes", type=numbers, default=[1, 4, 16, 64], help="of gradients, comma-separated")
    parser.add_argument("--quick", action="store_true", help="2 x 2 members and 1 MB only")
    parser.add_argument("--json", type=Path, help="write all times to this file")
    options.add_out(parser, "collectives", recorded=False)
    asked = parser.parse_args()
    members, megabytes = ([2], [1]) if asked.quick else (asked.members, asked.megabytes)
    cells = [Cell(*one) for one in product(members, megabytes, ALGORITHMS)]
    boots.all_in_a_boot({cell.name: plan_of(cell) for cell in cells}, asked.out)
    found = {cell: found_in(cell, asked.out / cell.name) for cell in cells}
    if asked.json:
        rows = [{**cell._asdict(), **one._asdict()} for cell, one in found.items()]
        asked.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    claims = [show(found), *(claim_of(algorithm, found) for algorithm in MODELLED)]
    return finish(asked, Topic.TRUTH, claims, directories=[asked.out / cell.name for cell in cells])


if __name__ == "__main__":
    sys.exit(main())
