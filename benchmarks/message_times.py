"""Under the virtual clock: every message against its prediction, by kind of path; no constant was found on these plans.

    python benchmarks/message_times.py [--per-boot 6] [--only NAME,...] [--out DIR]
    python benchmarks/message_times.py --read DIR...     # results that are there already, of any benchmark

P = 3, 5 and 8 over unequal datacenters, one link or several on a route, network cards or none, unequal rates, messages
of 30 kB to 3 MB, early and late receives, replicas. Prints, for every kind of path, how far the arrivals of a flow lie
from their predictions in the median, and the worst message; 1 when a median exceeds 20 us or a message 0.2 ms. Where
a prediction is a range, by who comes first, messages count with their time on the way for what was sent.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import boots, options
from harness.options import ROOT
from harness.plans import with_every
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.planning.resolve import make_plan
from testbed.spec.topology import load_topology
from testbed.spec.workload import load_workload
from testbed.vm import command

MEDIAN_S, WORST_S = 20e-6, 0.2e-3
SCHEDULES = ["1f1b", "zb-h1", "crosspipe-greedy"]
SHORT = {"iterations": "2", "warmup": "1"}
UNEQUAL = {
    "datacenters": "{paris: {nodes: 3}, bonn: {nodes: 1}, warsaw: {nodes: 4}}",
    "links": "[{between: [paris, bonn], delay: 3.3 ms, rate: 300 Mbit/s}, "
    "{between: [bonn, warsaw], delay: 7.1 ms, rate: 2 Gbit/s}]",
}
"""A way between the outer two crosses both links."""
CARDS = {
    "datacenters": "{paris: {nodes: 4, inside: {delay: 10 us, rate: 500 Mbit/s}}, "
    "warsaw: {nodes: 4, inside: {delay: 30 us, rate: 10 Gbit/s}}}",
    "links": "[{between: [paris, warsaw], delay: 5 ms, rate: 1 Gbit/s}]",
}
AROUND = "[paris/0, warsaw/0, paris/1, warsaw/1, bonn/0]"
THREE = "{layers: 6, d_model: 32, heads: 4, sequence: 16}"
FOUR = "{layers: 8, d_model: 32, heads: 4, sequence: 16}"
FIVE = "{layers: 10, d_model: 32, heads: 4, sequence: 16}"
PLANS: dict[str, tuple[int, dict[str, str], dict[str, str]]] = {
    # name: (stages of the shipped workload, settings of the topology, settings of the workload)
    "inside-30kB": (4, {}, {"message": "30 kB", "model": FOUR}),
    "inside-3MB": (4, {}, {"message": "3 MB", "pacing": "{F: 31 ms, I: 27 ms, W: 22 ms}"}),
    "inside-500kB-late": (4, {}, {"message": "500 kB", "receives": "late"}),
    "p3": (4, UNEQUAL, {"parallelism.pipeline": "3", "model": THREE, "microbatches": "7", "message": "150 kB"}),
    "p5-around": (
        4,
        UNEQUAL,
        {"parallelism.pipeline": "5", "memory": "5", "model": FIVE, "placement": AROUND, "message": "400 kB"},
    ),
    "p5-late": (
        4,
        UNEQUAL,
        {"parallelism.pipeline": "5", "memory": "5", "model": FIVE, "receives": "late", "message": "400 kB"},
    ),
    "p8": (8, UNEQUAL, {"message": "200 kB"}),
    "cards-50kB": (4, CARDS, {"message": "50 kB", "model": FOUR}),
    "cards-2MB": (4, CARDS, {"message": "2 MB", "pacing": "{F: 41 ms, I: 37 ms, W: 32 ms}"}),
    "cards-late": (4, CARDS, {"message": "500 kB", "receives": "late"}),
    "replicas": (4, {}, {"parallelism.pipeline": "2", "parallelism.data": "2", "message": "300 kB"}),
    "replicas-cards": (4, CARDS, {"parallelism.pipeline": "2", "parallelism.data": "2", "message": "300 kB"}),
}


class Flow(NamedTuple):
    """What a comparison says of the messages of a flow, and where they go; seconds."""

    run: str
    path: str
    kind: str
    receives: str
    error: float
    arrival_median_s: float
    arrival_worst_s: float
    extra_median_s: float
    extra_worst_s: float


def training(name: str, out: Path) -> command.GuestTraining:
    """A plan with its schedules."""
    stages, network, job = PLANS[name]
    topology = load_topology(ROOT / "topologies/two-dc-longhaul.yaml", network)
    plan = make_plan(topology, load_workload(ROOT / f"workloads/tiny-gpt-pp{stages}.yaml", SHORT | job))
    return command.GuestTraining(with_every(plan, SCHEDULES), out / name)


def path_of(network: dict[str, Any], route: Sequence[int]) -> str:
    """What kind of path a route is: network cards are numbered behind the network's directions."""
    links = sum(index < len(network["directions"]) for index in route)
    cards = " and cards" if len(route) > links else ""
    return f"{links} links{cards}" if links else "inside, cards" if cards else "inside"


def flows(directory: Path) -> Iterator[Flow]:
    """All flows of a run of one job of which an arrival is known."""
    plan = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    comparison = json.loads((directory / "comparison.json").read_text(encoding="utf-8"))
    pairs = [(flow["source"], flow["target"]) for flow in plan["flows"]]
    routes = {case["label"]: dict(zip(pairs, case["routes"], strict=True)) for case in plan["cases"]}
    for row in comparison["schedules"]:
        ways = routes[row["label"]]
        for flow in row["messages"]:
            if flow["arrival_median_s"] is None:
                continue
            path = path_of(plan["network"], ways[flow["source_rank"], flow["target_rank"]])
            receives = plan["jobs"][0]["workload"]["receives"]
            if row["predicted_low_s"] is not None:  # when they arrive hangs on who comes first
                flow |= {name: flow[name.replace("arrival", "extra")] for name in Flow._fields[5:7]}
            times = (flow[name] for name in Flow._fields[5:])
            yield Flow(f"{directory.name}, {row['label']}", path, flow["kind"], receives, row["error"], *times)


def report(found: Sequence[Flow]) -> Claim:
    """Print a row per kind of path; that no limit is exceeded."""
    rows = []
    groups: defaultdict[tuple[str, str, str], list[Flow]] = defaultdict(list)
    for flow in found:
        groups[flow.path, flow.kind, flow.receives].append(flow)
    for key, mine in sorted(groups.items()):
        worst = max(mine, key=lambda flow: abs(flow.arrival_worst_s))
        values = [max((getattr(flow, name) for flow in mine), key=abs) for name in Flow._fields[5:]]
        shown = [f"{1e6 * value:+.1f}" for value in values]
        rows.append((*key, len(mine), *shown, f"{worst.run} ({worst.error:+.4%})"))
    columns = ("path", "kind", "receives", "flows", "arrival", "worst", "on the way", "worst", "of")
    show_table("measured - predicted, us: flows' medians, worst message", columns, rows, 150)
    medians = sum(abs(flow.arrival_median_s) > MEDIAN_S for flow in found)
    messages = sum(abs(flow.arrival_worst_s) > WORST_S for flow in found)
    worst_s = max((abs(flow.arrival_worst_s) for flow in found), default=0.0)
    got = (
        f"{len(found)} flows: {medians} medians beyond, {messages} with a message beyond; worst {1e6 * worst_s:.0f} us"
    )
    asked = f"each <= {1e3 * WORST_S:g} ms off, medians <= {1e6 * MEDIAN_S:g} us"
    return Claim("arrivals of every message", asked, got, bool(found) and not medians + messages, worst_s, "s")


def main() -> int:
    """Measure, or read what was measured."""
    parser = options.parser(__doc__)
    options.add_per_boot(parser, 6)
    parser.add_argument("--only", default="", help="names of plans, comma-separated")
    parser.add_argument("--read", type=Path, nargs="+", help="directories of results to read instead")
    options.add_out(parser, "message-times", recorded=False)
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(PLANS)
    for begin in range(0, 0 if arguments.read else len(names), arguments.per_boot):
        boots.in_a_boot([training(name, arguments.out) for name in names[begin : begin + arguments.per_boot]])
    roots = arguments.read or [arguments.out / name for name in names]
    directories = sorted({file.parent for root in roots for file in root.rglob("comparison.json")})
    claim = report([flow for directory in directories for flow in flows(directory)])
    return finish(arguments, Topic.TRUTH, [claim], directories=directories)


if __name__ == "__main__":
    sys.exit(main())
