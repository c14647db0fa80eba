"""Traffic beside the jobs, real datagrams: what iterations take, against the model, which has them one by one.

The cases: pipelines of two and three datacenters, one job or two, with constant rates in the directions of their links,
from a twentieth to most of the rate that is left; messages of many super-packets and of few. Beside them plans drawn at
random: two to four datacenters in a line or a ring, links unequal in both directions, one job or two, early and late
receives; up to four flows between any two datacenters, over one link or several, whose rates stay, or change at times
of the training; alone and beside events of links; with jobs that train in rounds, that run freely, and one that adapts.
Each iteration is held against its own prediction; of jobs that run freely the mean, against the range that it has by
who comes first.

    python benchmarks/background_traffic.py [--drawn 30] [--first 0] [--seed 1] [--out DIR]
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import routing_lab
from events_on_the_wire import Iteration, iterations_of
from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.adaptation.adapting_plan import with_adaptation
from testbed.errors import BadInput
from testbed.plan.events import at_work
from testbed.plan.network_state import planned as network_of
from testbed.plan.plan import Background, Clock, Plan
from testbed.planning.prediction import freely, iteration_times, predict_training
from testbed.planning.resolve import make_plan, with_clock
from testbed.planning.resolve import network_of as built
from testbed.planning.schedules import choose, make, with_selected
from testbed.results.run_files import RunFiles
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

LARGEST_ERROR = 5e-4
SITES = ("oslo", "bonn", "rome", "brno")
KINDS = "constant", "trace", "constant, events", "trace, events", "trace, freely", "trace, adapting"
SCHEDULES = "1f1b", "gpipe", "zb-h1"
PER_BOOT, MOST_TRIES = 15, 50
MOST_BPS = 340e6
"""Of a flow, which one process sends."""
SLOWEST = 0.5
"""Share of its rate that an event may leave a link."""


class Beside(NamedTuple):
    """A case: jobs of so many microbatches, message bytes and seconds for a slot; rates of the traffic in Mbit/s."""

    sites: str
    jobs: tuple[tuple[int, float, float], ...]
    rates: dict[str, float]
    schedule: str = "1f1b"


CASES = {
    "a twentieth": Beside("ab", ((5, 270e3, 0.011),), {"ab": 11, "ba": 9}),
    "a third": Beside("ab", ((3, 610e3, 0.017),), {"ab": 67, "ba": 41}),
    "most, one way": Beside("ab", ((7, 90e3, 0.013),), {"ab": 149}),
    "most, gpipe": Beside("ab", ((4, 330e3, 0.009),), {"ab": 131, "ba": 143}, "gpipe"),
    "three sites": Beside("abc", ((5, 290e3, 0.012),), {"ab": 53, "ba": 37, "bc": 89, "cb": 19}),
    "three sites, zb-h1": Beside("abc", ((6, 130e3, 0.008),), {"ab": 97, "cb": 71}, "zb-h1"),
    "two jobs": Beside("ab", ((3, 370e3, 0.014), (5, 170e3, 0.01)), {"ab": 61, "ba": 83}),
}


def plan_of(one: Beside) -> Plan:
    """Its jobs, a pipeline over the sites each."""
    network: dict[str, Any] = {
        "name": "beside",
        "datacenters": {site: {"nodes": len(one.jobs)} for site in one.sites},
        "links": [
            {"between": list(ends), "delay": f"{4 + place} ms", "rate": "200 Mbit/s"}
            for place, ends in enumerate(zip(one.sites, one.sites[1:], strict=False))
        ],
    }
    workloads = []
    for number, (microbatches, message_bytes, slot_s) in enumerate(one.jobs):
        grid, sizes = [[f"{site}/{number}" for site in one.sites]], routing_lab.Sizes(message=message_bytes)
        workloads.append(
            routing_lab.workload(f"job{number}", grid, sizes, [one.schedule], slot_s=slot_s, microbatches=microbatches)
        )
    plan = routing_lab.planned(validate(Topology, network, "beside"), workloads)
    plan = replace(plan, background=tuple(Background(ends[0], ends[1], rate * 1e6) for ends, rate in one.rates.items()))
    return routing_lab.with_iterations(plan, 2, 1)


# --- drawn plans ---------------------------------------------------------------------------------


def drawn_plan(number: int, seed: int) -> Plan:
    """The plan of a number: the first of its draws that can be played."""
    for again in range(MOST_TRIES):
        draw = random.Random(f"background/{seed}/{number}/{again}")
        try:
            plan = _drawn(draw, KINDS[number % len(KINDS)])
            for case in plan.cases:
                predict_training(plan, case)
        except BadInput:  # an outage at the end of an iteration, or an event behind the training
            continue
        return plan
    raise RuntimeError(f"plan {number} of seed {seed}: no draw of {MOST_TRIES} can be played")


def _drawn(draw: random.Random, kind: str) -> Plan:
    adapts, free = kind.endswith("adapting"), kind.endswith("freely")
    jobs = 1 if adapts else 2 if free else draw.choice((1, 1, 2))
    sites = SITES[: draw.choice((2, 3, 3, 4))]
    pairs = [*pairwise(sites), *([(sites[-1], sites[0])] if len(sites) > 2 and draw.random() < 0.5 else [])]

    def direction() -> dict[str, str]:
        return {"delay": f"{draw.uniform(1, 19):.3f} ms", "rate": f"{draw.uniform(70, 390):.3f} Mbit/s"}

    network: dict[str, Any] = {
        "name": "beside",
        "datacenters": {site: {"nodes": 4 * jobs} for site in sites},
        "links": [{"between": list(pair), "forward": direction(), "reverse": direction()} for pair in pairs],
    }
    happens = "events" in kind or adapts
    network["background"] = _rows(draw, network, changing="trace" in kind, slower=happens)
    if happens:
        network["events"] = [_event(draw, pairs) for _ in range(draw.randint(1, 3))]
    workloads = [_workload(draw, number, sites, several=adapts) for number in range(jobs)]
    if not free:  # rounds of all jobs
        counts = {"iterations": 8 if adapts else 4, "warmup": 1}
        workloads = [workload.model_copy(update=counts) for workload in workloads]
    plan = with_clock(make_plan(validate(Topology, network, "beside"), *workloads), Clock("virtual"))
    labels = [[choice.label for choice in workload.schedules] for workload in workloads]
    plan = with_selected(plan, [make(plan, choose(plan, mine, job=job), job=job) for job, mine in enumerate(labels)])
    if adapts:
        return with_adaptation(plan, "ski-rental")
    return freely(plan) if free else plan


def _rows(draw: random.Random, network: Mapping[str, Any], *, changing: bool, slower: bool) -> list[dict[str, str]]:
    """Of the topology's background: all flows together leave a tenth of every link, as slow as events may make it."""
    known = network_of(built(validate(Topology, dict(network), "beside")))
    pairs = sorted(pair for pair, route in known.routes.items() if route)
    pairs = draw.sample(pairs, min(len(pairs), draw.randint(1, 4)))
    found = []
    for source, target in pairs:
        rate_bps = min(known.links[index].rate_bps for index in known.routes[source, target])
        most_bps = min(MOST_BPS, 0.9 / len(pairs) * (SLOWEST if slower else 1.0) * rate_bps)
        at_s = 0.0
        for _ in range(draw.randint(2, 5) if changing else 1):
            rate = f"{1e-6 * most_bps * draw.uniform(0.05, 1):.4f} Mbit/s"
            found.append({"from": source, "to": target, "rate": rate, "at": f"{1e3 * at_s:.4f} ms"})
            at_s += draw.uniform(0.02, 0.6)
        if changing and draw.random() < 0.5:
            found.append({"from": source, "to": target, "rate": "0 bit/s", "at": f"{1e3 * at_s:.4f} ms"})
    return found


def _event(draw: random.Random, pairs: list[tuple[str, str]]) -> str:
    source, target = draw.choice(pairs)
    where = draw.choice((f"link {source}--{target}", f"link {source}--{target} {target} -> {source}"))
    what = draw.choice(
        (
            f"rate {draw.uniform(100 * SLOWEST, 130):.2f} %",
            f"delay {draw.uniform(0.5, 25):.3f} ms",
            f"down for {draw.uniform(3, 40):.3f} ms",
        )
    )
    return f"{where} {what} at iteration {draw.randrange(3)} + {draw.uniform(0, 200):.3f} ms"


def _workload(draw: random.Random, number: int, sites: tuple[str, ...], *, several: bool) -> Workload:
    ranks = draw.randint(max(2, len(sites) - 1), 4)
    used = draw.sample(sites, min(ranks, len(sites)))
    grid = [[f"{used[rank * len(used) // ranks]}/{4 * number + rank}" for rank in range(ranks)]]
    sizes = routing_lab.Sizes(message=draw.uniform(40e3, 600e3))
    document = routing_lab.workload_document(
        f"job{number}",
        grid,
        sizes,
        SCHEDULES if several else [draw.choice(SCHEDULES)],
        slot_s=round(draw.uniform(0.006, 0.018), 5),
        microbatches=draw.randint(2, 6),
    )
    document["receives"] = draw.choice(("early", "early", "late"))
    return validate(Workload, document | {"iterations": draw.randint(3, 5)}, f"job{number}")


# --- against the model ---------------------------------------------------------------------------


class Measured(NamedTuple):
    """What came of some plans."""

    off: list[Iteration]
    untrusted: list[str]


def judged(plans: Mapping[str, Plan], out: Path) -> Measured:
    """Train them, and hold every iteration that counts against its own prediction."""
    off, untrusted, names = list[Iteration](), list[str](), list(plans)
    for first in range(0, len(names), PER_BOOT):
        batch = {name: plans[name] for name in names[first : first + PER_BOOT]}
        for name, document in routing_lab.documents(batch, out).items():
            (place,) = routing_lab.places([name], out)
            trained = RunFiles(place).plan
            for case in trained.cases:
                for job in at_work(trained, case):
                    mine = iterations_of(name, place, case.label, job)
                    off += [_mean(mine, place, job)] if trained.rounds == "free" else mine
            for row in document["schedules"]:
                if not row["trusted"]:
                    untrusted.append(f"{name}, {row['label']}: {'; '.join(row['reasons'])}")
    return Measured(off, untrusted)


def _mean(iterations: list[Iteration], place: Path, job: int) -> Iteration:
    """Of a job that runs freely, as one, against what its mean may be by who comes first."""
    measured_s, predicted_s = (
        float(np.mean([getattr(one, name) for one in iterations])) for name in ("measured_s", "predicted_s")
    )
    low_s, high_s = RunFiles(place).known_of(iterations[0].label, job)["range_s"]
    missed = max(low_s - measured_s, measured_s - high_s, 0.0) / predicted_s
    return iterations[0]._replace(measured_s=measured_s, predicted_s=predicted_s, missed=missed)


def claim_of(what: str, plans: Mapping[str, Plan], found: Measured) -> Claim:
    """That each iteration is as predicted, and each run trusted."""
    worst = max(one.missed for one in found.off)
    over = sorted({one.plan for one in found.off if one.missed > LARGEST_ERROR})
    for line in found.untrusted:
        print(line, file=sys.stderr)
    rows = [
        (
            one.plan,
            one.label,
            str(one.number),
            f"{1e3 * one.measured_s:.3f} ms",
            f"{1e3 * one.predicted_s:.3f} ms",
            f"{one.missed:.4%}",
        )
        for one in sorted(found.off, key=lambda one: -one.missed)[:12]
    ]
    show_table(f"{what}: furthest off", ("plan", "schedule", "iteration", "measured", "predicted", "error"), rows, 110)
    got = (
        f"worst {worst:.4%}, {len(found.off)} iteration times of {len(plans)} plans"
        + (f"; beyond: {over}" if over else "")
        + (f"; {len(found.untrusted)} untrusted" if found.untrusted else "")
    )
    fine = not over and not found.untrusted
    return Claim(what, f"<= {LARGEST_ERROR:.2%}, trusted", got, fine, worst, "share of the prediction")


def adds(plans: Mapping[str, Plan]) -> None:
    """Print what the traffic adds to an iteration, as predicted."""
    lines = []
    for name, plan in plans.items():
        beside, alone = (iteration_times(each, plan.cases[0]) for each in (plan, replace(plan, background=())))
        for beside_s, alone_s in zip(beside, alone, strict=True):
            lines.append((name, f"{1e3 * beside_s:.3f} ms", f"{beside_s / alone_s - 1:+.2%}"))
    show_table("traffic beside the jobs", ("case", "predicted", "it adds"), lines, 100)


def main() -> int:
    """1 where something measured is not as predicted."""
    parser = options.parser(__doc__)
    options.add_out(parser, "background-traffic", recorded=False)
    parser.add_argument("--drawn", type=int, default=30, help="plans drawn at random")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    cases = {name: plan_of(one) for name, one in CASES.items()} if asked.first == 0 else {}
    adds(cases)
    claims = []
    if cases:
        what = "traffic beside jobs, real datagrams, virtual clock"
        claims.append(claim_of(what, cases, judged(cases, asked.out)))
    plans = drawn_plans(asked)
    if plans:
        also = "several links, rates that change, events, --rounds free, --adapt"
        what = f"the same in plans drawn with seed {asked.seed}: {also}"
        claims.append(claim_of(what, plans, judged(plans, asked.out)))
    return finish(asked, Topic.TRUTH, claims, directories=routing_lab.places([*cases, *plans], asked.out))


def drawn_plans(asked: Namespace) -> dict[str, Plan]:
    """Those that are asked for, by name."""
    numbers = range(asked.first, asked.first + asked.drawn)
    return {f"{number:03d} {KINDS[number % len(KINDS)]}": drawn_plan(number, asked.seed) for number in numbers}


if __name__ == "__main__":
    sys.exit(main())
