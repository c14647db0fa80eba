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

    python benchmarks/routing_joint.py [--predict] [--quick] [--out DIR]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

from harness import boots, options
from harness.record import Claim, Topic, finish
from harness.report import show_table
from routing_lab import as_predicted

from testbed.plan.framing import wire_bytes
from testbed.plan.plan import Clock, Plan
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import make_plan, with_clock
from testbed.planning.schedules import choose as choose_schedules
from testbed.planning.schedules import every_choice, make, with_selected
from testbed.routing.apply import with_policies
from testbed.routing.planner import Planner, Reach
from testbed.routing.policies import POLICIES, PolicyChoice, choose
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

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
THAN, WIDE = ("than routing", "than schedule", "than in turn"), 150
"""What joint is held against, and columns of a screen that the tables take."""


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


def show(rows: Sequence[Row]) -> Claim:
    """Print predicted seconds of every choice; what `joint` gains."""
    lines = []
    for row in rows:
        times = {name: seconds for name, (_, seconds) in row.found.items()}
        gains = [f"{gain:.2%}" for gain in gains_of(times).values()]
        name = f"{row.point.kind}{'*' if tuple(row.point) in MEASURED else ''}"
        cells = [f"{seconds * 1e3:.1f}" for seconds in times.values()]
        joint = row.found["joint"][0].partition(" on ")[0]
        lines.append((name, f"{row.point.delay:g}", f"{row.point.wire:g}", *cells, *gains, joint))
    columns = (*("links", "delay", "wire", "fixed", "routing", "schedule", "in turn", "joint"), *THAN, "joint's")
    show_table("predicted iteration time, ms; what joint takes less than each", columns, lines, WIDE)
    every = [gains_of({name: seconds for name, (_, seconds) in row.found.items()}) for row in rows]
    return gains_claim(f"`joint` on {len(rows)} meshes, predicted", every)


def gains_of(seconds: Mapping[str, float]) -> dict[str, float]:
    """By how much less joint takes than each choice alone, as a share."""
    return {name: 1 - seconds["joint"] / seconds[name] for name in ("routing", "schedule", "in turn")}


def gains_claim(what: str, every: Sequence[Mapping[str, float]]) -> Claim:
    """The least and the most of all."""
    got = [f"{min(g[name] for g in every):.1%} to {max(g[name] for g in every):.1%} than {name}" for name in every[0]]
    return Claim(f"{what}: takes less", "(report)", ", ".join(got), None, max(g["schedule"] for g in every), "share")


def measured(rows: Sequence[Row], out: Path) -> list[Claim]:
    """Train the marked points; that every figure is as predicted, and what joint gains."""
    chosen = [row for row in rows if tuple(row.point) in MEASURED]
    documents = boots.all_in_a_boot({row.point.name: row.plan for row in chosen}, out, limit_s=LIMIT_S)
    shown, gains, worst, good = [], [], 0.0, 0
    for row, document in zip(chosen, documents.values(), strict=True):
        lines: list[dict[str, Any]] = document["schedules"]
        measured_s = {line["label"]: line["measured_s"] for line in lines}
        off = max((line["error"] for line in lines), key=abs)
        ranked = as_predicted([(line["predicted_s"], line["measured_s"]) for line in lines], TIE)
        trusted = all(line["trusted"] for line in lines)
        seconds = {name: measured_s[label] for name, (label, _) in row.found.items()}
        gains.append(gains_of(seconds))
        worst, good = max(worst, abs(off)), good + (abs(off) <= LARGEST_ERROR and ranked and trusted)
        words = ("yes" if one else "NO" for one in (ranked, trusted))
        times = (f"{seconds['joint'] * 1e3:.1f} ms", *(f"{gain:.2%}" for gain in gains[-1].values()))
        shown.append((row.point.name, len(lines), f"{off:+.3%}", *words, *times))
    columns = ("point", "cases", "worst error", "ranking as predicted", "trusted", "joint, measured", *THAN)
    show_table("measured under the virtual clock", columns, shown, WIDE)
    of, asked = len(chosen), f"<= {LARGEST_ERROR:.1%}, ranked, trusted"
    got = f"{good} of {of} points, worst {worst:.3%}"
    what = "`joint` on meshes, measured"
    claim = Claim(what, asked, got, good == of, worst, "share of the prediction", of, of)
    return [claim, gains_claim(what, gains)]


def main() -> int:
    """1 where something measured is not as predicted."""
    parser = options.parser(__doc__)
    parser.add_argument("--predict", action="store_true", help="nothing is trained")
    parser.add_argument("--quick", action="store_true", help="one point of each kind")
    parser.add_argument("--evaluations", type=int, default=800, help="of joint")
    options.add_out(parser, "routing-joint", recorded=False)
    asked = parser.parse_args()
    points = [Point(*one) for one in product(("equal", "unequal"), DELAYS, WIRES) if one[1] == 0.5 or one[2] > 0.02]
    if asked.quick:
        points = [one for one in points if one.delay == 0.5 and one.wire == 1.0]
    rows = []
    for point in points:
        rows.append(judged(point, asked.evaluations))
        print(json.dumps({"point": point.name, "found": rows[-1].found}), flush=True)
    claims = [show(rows), *([] if asked.predict else measured(rows, asked.out))]
    places = [] if asked.predict else [asked.out / Point(*one).name for one in MEASURED]
    return finish(asked, Topic.ROUTING, claims, directories=places)


if __name__ == "__main__":
    sys.exit(main())
