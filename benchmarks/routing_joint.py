"""Routes and schedules chosen together (`joint`) against either choice alone, on meshes of four datacenters.

Two replicas of a pipeline of four stages (M = 8, memory for 2P microbatches) over a full mesh, both a -> b -> c -> d.
Equal: six links alike. Unequal: rates and delays of the six links are those of equal times factors that stand below.
Per point, in units of T_F: the one-way delay of a link, and a message's time on its wire. Compared are

* fixed: 1F1B on the default routes;
* routing: 1F1B under the best of all policies, with 20 seeds of ECMP;
* schedule: the best of all families that fit on the default routes;
* in turn: that schedule under the best of all policies;
* joint: both at once. It begins from all of these, so it cannot be predicted to be slower.

Predicted for all points. Points marked * are trained under the virtual clock too, in one boot: every choice a case.

Run: python benchmarks/routing_joint.py [--predict] [--quick] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Clock, Plan
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import make_plan, with_clock
from testbed.planning.schedules import choose as choose_schedules
from testbed.planning.schedules import every_choice, make, with_selected
from testbed.progress import Lines
from testbed.routing.apply import with_policies
from testbed.routing.planner import Planner, Reach
from testbed.routing.policies import POLICIES, PolicyChoice, choose
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload
from testbed.vm import command

ROOT = Path(__file__).parents[1]
SITES = "abcd"
FORWARD_S = 0.02
MESSAGE = 250_000
UNEQUAL = {"ab": (1, 1), "bc": (2, 0.5), "cd": (1, 1), "ac": (0.5, 1), "bd": (1, 2), "ad": (2, 2)}
"""Factors on delay and rate: the middle cut of the pipeline is long and slow, ways round it are not."""

DELAYS, WIRES = (0.05, 0.5, 2.0), (0.02, 0.5, 1.0)
"""In T_F. With a wire of 0.02 nothing waits for a link: a control, at one delay."""

MEASURED = {
    *(("equal", delay, wire) for delay, wire in ((0.05, 0.5), (0.5, 1.0), (0.5, 0.02))),
    *(("unequal", delay, wire) for delay, wire in ((0.05, 1.0), (0.5, 0.5), (0.5, 1.0), (2.0, 0.5))),
}
SEEDS = range(1, 21)
REACH = Reach(elephants_from=100e3)
LIMIT_S = 3 * 3600.0
LARGEST_ERROR, TIE = 0.002, 1e-4


class Point(NamedTuple):
    """A mesh."""

    kind: str
    delay: float
    wire: float

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{self.kind}-lat{self.delay:g}-bw{self.wire:g}"


class Row(NamedTuple):
    """What became of a point: by choice its label and predicted seconds; the plan has a case for each label."""

    point: Point
    found: dict[str, tuple[str, float]]
    plan: Plan


def topology(point: Point) -> Topology:
    """A full mesh with two nodes in each datacenter."""
    rate = 8 * wire_bytes(MESSAGE) / (point.wire * FORWARD_S)
    links = []
    for ends in combinations(SITES, 2):
        longer, faster = UNEQUAL["".join(ends)] if point.kind == "unequal" else (1, 1)
        delay = f"{point.delay * FORWARD_S * longer * 1e6:.0f} us"
        links.append({"between": list(ends), "delay": delay, "rate": f"{rate * faster:.0f} bit/s"})
    sites = {name: {"nodes": 2} for name in SITES}
    return validate(Topology, {"name": "mesh", "datacenters": sites, "links": links}, point.name)


def workload() -> Workload:
    """Two pipelines side by side."""
    document = {
        "name": "side-by-side",
        "model": {"layers": 4, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": 4, "data": 2},
        "placement": [f"{site}/0" for site in SITES],
        "data_parallel": {"replicas": [[f"{site}/1" for site in SITES]]},
        "microbatches": 8,
        "microbatch_size": 1,
        "pacing": dict.fromkeys("FIW", f"{FORWARD_S * 1e3:g} ms"),
        "message": f"{MESSAGE} B",
        "memory": 8,
        "schedules": ["1f1b", {"schedule": "search", "evaluations": 60}],
        "iterations": 1,
        "warmup": 1,
    }
    return validate(Workload, document, "workload")


def policies() -> list[PolicyChoice]:
    """All that choose routes alone, `shortest` first, without those for a Clos and for a handful of flows."""
    names = [name for name in POLICIES if not isinstance(POLICIES[name], Planner)]
    found = [choose(name) for name in names if name not in ("ecmp", "edge-coloring", "lexicographic")]
    return [*found, *(choose(f"ecmp,seed={seed}") for seed in SEEDS)]


def _times(single: Sequence[Plan], case: int, one: int) -> tuple[float, ...]:
    return iteration_times(single[one], single[one].cases[case])


def judged(point: Point, evaluations: int) -> Row:
    """All choices of a point."""
    blank = with_clock(make_plan(topology(point), workload()), Clock("virtual"))
    every = with_selected(blank, [make(blank, every_choice(blank))])
    baseline, _ = with_policies(every, [choose("shortest")], REACH)
    times = {case.label: iteration_times(baseline, case)[0] for case in baseline.cases}
    fastest = min(times, key=times.__getitem__)
    wanted = choose_schedules(blank, list(dict.fromkeys(("1f1b", fastest))))
    plan = with_selected(blank, [make(blank, wanted)])
    single = [with_policies(plan, [chosen], REACH)[0] for chosen in policies()]
    best_of = [min(range(len(single)), key=partial(_times, single, case)) for case in range(len(plan.cases))]
    kept_policies = [policies()[one] for one in dict.fromkeys((0, *best_of))]
    routed, _ = with_policies(plan, [*kept_policies, choose(f"joint,evaluations={evaluations}")], REACH)
    seconds = {case.label: iteration_times(routed, case)[0] for case in routed.cases}

    def best(schedule: str) -> str:
        return min(
            (label for label in seconds if label.startswith(f"{schedule} on ") and "joint" not in label),
            key=seconds.__getitem__,
        )

    labels = {
        "fixed": "1f1b on shortest",
        "routing": best("1f1b"),
        "schedule": f"{fastest} on shortest",
        "in turn": best(fastest),
        "joint": routed.cases[-1].label,
    }
    kept = set(labels.values())
    cases = tuple(case for case in routed.cases if case.label in kept)
    return Row(point, {name: (label, seconds[label]) for name, label in labels.items()}, replace(routed, cases=cases))


def table(rows: Sequence[Row]) -> Table:
    """Predicted seconds of every choice, and what `joint` gains."""
    found = Table(title="predicted iteration time, ms; what joint takes less than each", title_justify="left")
    for name in (
        "links",
        "delay",
        "wire",
        "fixed",
        "routing",
        "schedule",
        "in turn",
        "joint",
        "than routing",
        "than schedule",
        "than in turn",
        "joint's",
    ):
        found.add_column(name, justify="right", no_wrap=name != "joint's")
    for row in rows:
        times = {name: seconds for name, (_, seconds) in row.found.items()}
        star = "*" if tuple(row.point) in MEASURED else ""
        gains = [f"{1 - times['joint'] / times[name]:.2%}" for name in ("routing", "schedule", "in turn")]
        cells = [f"{times[name] * 1e3:.1f}" for name in times]
        found.add_row(
            f"{row.point.kind}{star}",
            f"{row.point.delay:g}",
            f"{row.point.wire:g}",
            *cells,
            *gains,
            row.found["joint"][0].partition(" on ")[0],
        )
    return found


def measured(rows: Sequence[Row], out: Path, console: Console) -> bool:
    """Train the marked points; whether every figure is as predicted."""
    chosen = [row for row in rows if tuple(row.point) in MEASURED]
    trainings = [command.Training(row.plan, out / row.point.name, quiet=True) for row in chosen]
    machine = command.choose_machine(Clock("virtual"))
    _, documents = command.train(machine, trainings, limit_s=LIMIT_S, reporter=Lines())
    found = Table(title="measured under the virtual clock", title_justify="left")
    for name in (
        "point",
        "cases",
        "worst error",
        "ranking as predicted",
        "trusted",
        "joint, measured",
        "less than routing",
        "than schedule",
        "than in turn",
    ):
        found.add_column(name, justify="right")
    good = True
    for row, document in zip(chosen, documents, strict=True):
        if document is None:
            found.add_row(row.point.name, "failed")
            good = False
            continue
        lines: list[dict[str, Any]] = document["schedules"]
        seconds = {line["label"]: line["measured_s"] for line in lines}
        worst = max((line["error"] for line in lines), key=abs)
        ranked = as_predicted([(line["predicted_s"], line["measured_s"]) for line in lines])
        trusted = all(line["trusted"] for line in lines)
        good = good and abs(worst) <= LARGEST_ERROR and ranked and trusted
        joint = seconds[row.found["joint"][0]]
        gains = [f"{1 - joint / seconds[row.found[name][0]]:.2%}" for name in ("routing", "schedule", "in turn")]
        cells = ["yes" if one else "NO" for one in (ranked, trusted)]
        found.add_row(row.point.name, str(len(lines)), f"{worst:+.3%}", *cells, f"{joint * 1e3:.1f} ms", *gains)
    console.print(found)
    return good


def as_predicted(pairs: Sequence[tuple[float, float]]) -> bool:
    """Whether measuring ranks as predicting does; of what is predicted within a tie, either order is right."""
    order = sorted(pairs, key=lambda pair: pair[1])
    return all(faster[0] <= slower[0] * (1 + TIE) for faster, slower in combinations(order, 2))


def main() -> int:
    """1 where something measured is not as predicted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true", help="nothing is trained")
    parser.add_argument("--quick", action="store_true", help="one point of each kind")
    parser.add_argument("--evaluations", type=int, default=800, help="of joint")
    parser.add_argument("--out", type=Path, default=ROOT / "results/routing-joint")
    asked = parser.parse_args()
    console = Console(width=150)
    points = [Point(*one) for one in product(("equal", "unequal"), DELAYS, WIRES) if one[1] == 0.5 or one[2] > 0.02]
    if asked.quick:
        points = [one for one in points if one.delay == 0.5 and one.wire == 1.0]
    rows = []
    for point in points:
        rows.append(judged(point, asked.evaluations))
        print(json.dumps({"point": point.name, "found": rows[-1].found}), flush=True)
    console.print(table(rows))
    if asked.predict:
        return 0
    return 0 if measured(rows, asked.out, console) else 1


if __name__ == "__main__":
    sys.exit(main())
