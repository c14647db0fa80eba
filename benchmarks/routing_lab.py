"""Two jobs in a Clos under every policy: the worst job's rate, all-reduce and iteration time, predicted and measured.

Four leaves with four hosts, two or four spines, all links alike. Job A (rings): four replicas of two stages, a replica
per leaf, so that data parallelism crosses leaves. Job B (pipelines): two replicas of four stages, a stage per leaf, so
that activations and gradients do. Every policy, and 20 seeds of ECMP, is a case of one plan for each number of spines,
so that one lab measures them all. Three ways to look at a choice of routes, as every run has them
(judge/network_metric.py):

* filled: the worst job's max-min-fair rate, as if every flow always had something to send (progressive filling);
* seen: the least rate of a flow while messages of it are under way; predicted, and measured from the messages' times;
  and the most flows on a link, planned and counted;
* outcome: per job the iteration, and the time from the first gradient that is reduced to the last.

A control has links 150 times as fast: there all policies must come out alike.

    python benchmarks/routing_lab.py [--predict | --real | --alone] [--quick] [--spines 2 4] [--json] [--out DIR]

With --real two of the policies on the real clock: all links half as fast, messages twice and slots four times as long.
With --alone each job is trained by itself as well, under two policies: what the other one costs it, beside the model.
In the control the jobs share nothing: each has two leaves for itself.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import boots, options
from harness.boots import run_testbed
from harness.record import Claim, Topic, finish
from harness.report import show_run, show_table
from rich.console import Console

from testbed.cli.run_tables import jobs_tables
from testbed.errors import RunFailed, TestbedError
from testbed.judge.comparison import fairness_in, rows_of
from testbed.judge.network_metric import Filled, Seen, expected
from testbed.plan.alone import with_alone
from testbed.plan.plan import Clock, Plan
from testbed.planning import file
from testbed.planning.prediction import iteration_times, predict_together
from testbed.planning.resolve import make_plan, with_clock
from testbed.planning.schedules import choose as choose_schedules
from testbed.planning.schedules import make, with_selected
from testbed.routing.apply import with_policies
from testbed.routing.planner import Reach
from testbed.routing.policies import choose
from testbed.spec.clos import spelt_out
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

LEAVES, HOSTS, RATE_BPS = 4, 4, 200e6
SLOT_S = 0.005
MICROBATCHES = 8
FREE = 150
"""Rate of the control's links over RATE_BPS."""

POLICIES = (
    *("shortest", "static", "greedy", "greedy-bytes", "greedy-jobs", "greedy-time", "edge-coloring", "annealing"),
    *("ilp", "lexicographic", "joint,schedules=false", "joint"),
)
SEEDS = range(1, 21)
QUICK = ("shortest", "greedy", "greedy-bytes", "joint,schedules=false,evaluations=100", "ecmp,seed=1", "ecmp,seed=2")
REAL, REAL_SLOWER, LARGEST_REAL_ERROR = ("shortest", "greedy-bytes"), 2, 0.05
CONTROLS = (*QUICK[:3], "greedy-time", "edge-coloring", *QUICK[-2:])
REACH = Reach(elephants_from=100e3)
LIMIT_S = 3 * 3600.0
LARGEST_ERROR, TIE, ALIKE, FREE_OF_OTHERS = 0.02, 1e-3, 0.002, 1e-3
"""Measured against predicted; predictions that either order is right for; policies of the control; slowdowns by others,
off what is predicted, and where nothing is shared."""


class Sizes(NamedTuple):
    """What the jobs send, in bytes."""

    ring: float = 2e6
    """Parameters of a rank of job A: a flow of its rings carries 1.5 times as many in an iteration."""
    message: float = 250e3
    """A boundary tensor of job B; of job A, whose stages are in one leaf, too."""


class Row(NamedTuple):
    """One case under its policy."""

    label: str
    filled: Filled
    predicted: Seen
    measured: Seen | None = None
    trusted: bool = True


def topology(spines: int, rate_bps: float = RATE_BPS) -> Topology:
    """A Clos of four leaves with four hosts."""
    shape = {"leaves": LEAVES, "spines": spines, "hosts": HOSTS, "rate": f"{rate_bps:.0f} bit/s", "delay": "10 us"}
    document = {"name": f"clos-{spines}", "datacenters": {"pod": {"clos": shape}}}
    return validate(Topology, spelt_out(document, "clos"), "clos")


def workload(
    name: str,
    grid: Sequence[Sequence[str]],
    sizes: Sizes,
    schedules: Sequence[Any],
    slot_s: float = SLOT_S,
    microbatches: int = MICROBATCHES,
) -> Workload:
    """A job whose replicas are the rows of a grid of nodes."""
    return validate(Workload, workload_document(name, grid, sizes, schedules, slot_s, microbatches), name)


def workload_document(
    name: str,
    grid: Sequence[Sequence[str]],
    sizes: Sizes,
    schedules: Sequence[Any],
    slot_s: float = SLOT_S,
    microbatches: int = MICROBATCHES,
) -> dict[str, Any]:
    """The same as a file has it."""
    replicas, stages = len(grid), len(grid[0])
    return {
        "name": name,
        "model": {"layers": stages, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": stages, "data": replicas},
        "placement": list(grid[0]),
        "data_parallel": {"replicas": [list(row) for row in grid[1:]], "parameters": f"{sizes.ring:.0f} B"},
        "microbatches": microbatches,
        "microbatch_size": 1,
        "pacing": dict.fromkeys("FIW", f"{slot_s * 1e3:g} ms"),
        "message": f"{sizes.message:.0f} B",
        "memory": microbatches,
        "schedules": list(schedules),
        "iterations": 1,
        "warmup": 1,
    }


def jobs(
    sizes: Sizes = Sizes(),  # noqa: B008
    schedules: Sequence[Any] = ("1f1b",),
    slot_s: float = SLOT_S,
) -> tuple[Workload, Workload]:
    """Rings: a replica per leaf, on its first two hosts. Pipelines: a stage per leaf, on its other two."""
    rings = [[f"pod-leaf{leaf}/{host}" for host in (0, 1)] for leaf in range(LEAVES)]
    pipelines = [[f"pod-leaf{leaf}/{host}" for leaf in range(LEAVES)] for host in (2, 3)]
    mine = sizes, schedules, slot_s
    return workload("rings", rings, *mine), workload("pipelines", pipelines, *mine)


def planned(network: Topology, workloads: Sequence[Workload]) -> Plan:
    """The plan of jobs under the first of their schedules, under the virtual clock."""
    plan = with_clock(make_plan(network, *workloads), Clock("virtual"))
    chosen = [
        make(plan, choose_schedules(plan, [workloads[job].schedules[0].label], job=job), job=job)
        for job in range(len(workloads))
    ]
    return with_selected(plan, chosen)


def predicted(plan: Plan) -> list[Row]:
    """Every case as predicted."""
    found = []
    for case in plan.cases:
        known = expected(plan, case, predict_together(plan, case), iteration_times(plan, case))
        found.append(Row(case.label, *known))
    return found


def report(title: str, plan: Plan, rows: Sequence[Row]) -> None:
    """A row per policy: what is predicted, and where it was measured, how far that is off."""
    rows = sorted(rows, key=lambda row: max(row.predicted.iteration_s))
    columns = {
        "policy": [row.label for row in rows],
        "most flows": [str((row.measured or row.filled).most_flows) for row in rows],
        "filled Mbit/s": [scaled(min(map(number, row.filled.rates_bps)), 1e-6) for row in rows],
    }
    for job, name in enumerate(one.name for one in plan.jobs):
        columns[f"{name} Mbit/s"] = [scaled(number(row.predicted.rates_bps[job]), 1e-6) for row in rows]
        columns[f"{name} reduced, ms"] = [scaled(number(row.predicted.all_reduce_s[job]), 1e3) for row in rows]
        columns[f"{name} iteration, ms"] = [scaled(row.predicted.iteration_s[job], 1e3) for row in rows]
    off = {"iteration_s": "iteration", "all_reduce_s": "reduced", "rates_bps": "rate", "fct_worst_s": "worst FCT"}
    for job, name in enumerate(one.name for one in plan.jobs if rows and rows[0].measured):
        for kind, what in off.items():
            columns[f"{name} {what}, off"] = [error_of(row, kind, job) for row in rows]
    show_table(title, list(columns), list(zip(*columns.values(), strict=True)), 160)


def number(value: float | None) -> float:
    """Infinite where there is none."""
    return math.inf if value is None else value


def scaled(value: float, by: float) -> str:
    """A number in a table."""
    return f"{value * by:.1f}" if math.isfinite(value) else "-"


def error_of(row: Row, kind: str, job: int) -> str:
    """How far something measured is off what is predicted."""
    if row.measured is None:
        return "-"
    expected, seen = getattr(row.predicted, kind)[job], getattr(row.measured, kind)[job]
    return "-" if expected is None or seen is None else f"{seen / expected - 1:+.2%}"


def as_predicted(pairs: Sequence[tuple[float, float]], tie: float = TIE) -> bool:
    """Whether (predicted, measured) rank alike; of what is predicted within a tie either order is right."""
    order = sorted(pairs, key=lambda pair: pair[1])
    return all(faster[0] <= slower[0] * (1 + tie) for faster, slower in combinations(order, 2))


def labels(quick: bool) -> list[str]:
    """The policies, with the seeds of ECMP."""
    return list(QUICK) if quick else [*POLICIES, *(f"ecmp,seed={seed}" for seed in SEEDS)]


def main() -> int:
    """1 where something measured, or the control, is not as it must be."""
    parser = options.parser(__doc__)
    parser.add_argument("--predict", action="store_true", help="nothing is trained")
    parser.add_argument("--real", action="store_true", help="two policies on the real clock")
    parser.add_argument("--alone", action="store_true", help="each job by itself as well")
    parser.add_argument("--quick", action="store_true", help="six policies")
    parser.add_argument("--spines", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--json", action="store_true")
    options.add_out(parser, "routing-lab", recorded=False)
    asked = parser.parse_args()
    if asked.real:
        claims = [on_the_real_clock(number, asked.out) for number in asked.spines]
        return finish(asked, Topic.ROUTING, claims, clock="real")
    if asked.alone:
        return finish(asked, Topic.ROUTING, alone(asked.spines, asked.out / "alone"))
    plans: dict[str, Plan] = {}
    schedules = ("1f1b", {"schedule": "search", "evaluations": 40})
    for spines in asked.spines:
        for name, rate, texts in (
            (f"{spines} spines", RATE_BPS, labels(asked.quick)),
            (f"{spines} spines, no contention", FREE * RATE_BPS, CONTROLS),
        ):
            plan = planned(topology(spines, rate), jobs(schedules=schedules))
            plans[name], remarks = with_policies(plan, [choose(text) for text in possible(plan, texts)], REACH)
            for remark in remarks:
                print(f"{name}: {remark}", flush=True)
    found = {name: predicted(plan) for name, plan in plans.items()}
    if not asked.predict:
        found = measured(plans, found, asked.out)
    claims = [] if asked.predict else [claim_of("two jobs in a Clos under every policy", found)]
    for name, rows in found.items():
        report(name, plans[name], rows)
        if "no contention" in name:
            most = spread(rows)
            what, limit = f"{name}: policies alike", f"<= {ALIKE:.1%}"
            claims.append(Claim(what, limit, f"{most:.3%} apart", most <= ALIKE, most, "share"))
        else:
            claims.append(slowest(name, rows))
    if asked.json:
        print(json.dumps({name: [row._asdict() for row in rows] for name, rows in found.items()}, default=asdict))
    taken = [] if asked.predict else places(plans, asked.out)
    return finish(asked, Topic.ROUTING, claims, directories=taken)


def slowest(name: str, rows: Sequence[Row]) -> Claim:
    """How long the slowest job takes under every policy, the median of the seeds of ECMP."""
    times: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        policy = row.label.partition(" on ")[2].partition(" seed=")[0]
        times[policy].append(max((row.measured or row.predicted).iteration_s))
    found = {policy: statistics.median(each) for policy, each in times.items()}
    order = sorted(found, key=lambda policy: found[policy])
    got = ", ".join(f"{policy} {found[policy] * 1e3:.0f}" for policy in order)
    return Claim(f"two jobs, {name}: the slowest", "(report)", f"{got} ms", None, found[order[0]], "s")


def on_the_real_clock(spines: int, out: Path) -> Claim:
    """That errors are small, ranked as predicted and trusted. Prints every row. Raises RunFailed."""
    sizes = Sizes(*(REAL_SLOWER * size for size in Sizes()))
    network = topology(spines, RATE_BPS / REAL_SLOWER)
    plan = with_clock(planned(network, jobs(sizes, slot_s=REAL_SLOWER**2 * SLOT_S)), Clock("real"))
    plan, _ = with_policies(plan, [choose(text) for text in REAL], REACH)
    place = out / f"{spines}-spines-real"
    place.mkdir(parents=True, exist_ok=True)
    file.write(with_iterations(plan, 6, 2), place / "asked.json")
    code, document, said = run_testbed("run", str(place / "asked.json"), "--out", str(place / "run"), "--overwrite")
    if document is None:
        raise RunFailed(f"{spines} spines: exit code {code}: {said}")
    rows, ranked = document["schedules"], document["ranking_as_predicted"]
    show_run(f"{spines} spines", document)
    errors, untrusted = [row["error"] for row in rows], sum(not row["trusted"] for row in rows)
    worst, ending = max(map(abs, errors)), "" if ranked else ", NOT ranked"
    got = f"{min(errors):+.2%} to {max(errors):+.2%}, {untrusted} of {len(rows)} untrusted{ending}"
    what = f"two jobs of 16 ranks on the real clock, {spines} spines"
    asked = f"<= {LARGEST_REAL_ERROR:.0%}, trusted, ranked"
    fine = worst <= LARGEST_REAL_ERROR and ranked and code == 0
    return Claim(what, asked, got, fine, worst, "share of the prediction")


def with_iterations(plan: Plan, iterations: int, warmup: int) -> Plan:
    """The plan in which every job trains for so many iterations."""
    counts = {"iterations": iterations, "warmup": warmup}
    return replace(plan, jobs=tuple(replace(job, workload=job.workload.model_copy(update=counts)) for job in plan.jobs))


def possible(plan: Plan, texts: Sequence[str]) -> list[str]:
    """The policies without exact ones that find the plan too large, which is said."""
    found = []
    for text in texts:
        try:
            if text.startswith("lexicographic"):
                with_policies(plan, [choose(text)], REACH)
            found.append(text)
        except TestbedError as error:
            print(f"left out: {error}", flush=True)
    return found


def spread(rows: Sequence[Row]) -> float:
    """The most by which the iterations of a job differ between policies."""
    every = np.array([(row.measured or row.predicted).iteration_s for row in rows])
    return float((every.max(axis=0) / every.min(axis=0) - 1).max())


def claim_of(what: str, found: Mapping[str, Sequence[Row]]) -> Claim:
    """That all measured iterations of every plan are as predicted, and rank so, job by job; prints a line for each."""
    worst, wrong = 0.0, []
    for name, rows in found.items():
        pairs = [
            [(row.predicted.iteration_s[job], row.measured.iteration_s[job]) for row in rows if row.measured]
            for job in range(len(rows[0].predicted.iteration_s))
        ]
        off = max(abs(measured / predicted - 1) for each in pairs for predicted, measured in each)
        ranked, trusted = all(as_predicted(each) for each in pairs), all(row.trusted for row in rows)
        words = ["yes" if one else "NO" for one in (ranked, trusted)]
        print(f"{name}: worst error {off:.3%}, ranking as predicted: {words[0]}, trusted: {words[1]}")
        worst = max(worst, off)
        if off > LARGEST_ERROR or not ranked or not trusted:
            wrong.append(name)
    got = f"{len(found) - len(wrong)} of {len(found)} plans, {sum(map(len, found.values()))} rows, worst {worst:.3%}"
    got += f"; not: {', '.join(wrong)}" if wrong else ""
    return Claim(what, f"<= {LARGEST_ERROR:.0%}, ranked, trusted", got, not wrong, worst, "share of the prediction")


def places(names: Iterable[str], out: Path) -> list[Path]:
    """Where the results of plans go."""
    return [out / name.replace(",", "").replace(" ", "-") for name in names]


def documents(plans: Mapping[str, Plan], out: Path) -> dict[str, dict[str, Any]]:
    """All plans trained in one boot: their comparisons. Raises RunFailed where one failed."""
    named = {place.name: plan for place, plan in zip(places(plans, out), plans.values(), strict=True)}
    found = boots.all_in_a_boot(named, out, limit_s=LIMIT_S)
    return dict(zip(plans, found.values(), strict=True))


def measured(plans: Mapping[str, Plan], rows: Mapping[str, Sequence[Row]], out: Path) -> dict[str, list[Row]]:
    """The same rows with what was measured."""
    return {name: with_measured(rows[name], document) for name, document in documents(plans, out).items()}


def with_measured(rows: Sequence[Row], document: Mapping[str, Any]) -> list[Row]:
    """Rows of one plan with what its results say. Rates are of messages whose arrival somebody was waiting for."""
    fairness, found = {case.label: case for case in fairness_in(document)}, []
    for row in rows:
        lines = [line for line in document["schedules"] if line["label"] == row.label]
        case, trusted = fairness[row.label], all(line["trusted"] for line in lines)
        found.append(row._replace(predicted=case.predicted, measured=case.measured, trusted=trusted))
        for line in lines:
            if not line["trusted"]:
                print(f"{row.label}: {line.get('job', '')}: {'; '.join(line['reasons'])}", file=sys.stderr)
    return found


def apart() -> tuple[Workload, Workload]:
    """The control of --alone: each job on two leaves of its own, so that no direction is shared."""
    rings, pipelines = (
        [[f"pod-leaf{leaf}/{host}" for leaf in leaves] for host in (0, 1)] for leaves in ((0, 1), (2, 3))
    )
    mine = Sizes(), ("1f1b",)
    return workload("rings", rings, *mine), workload("pipelines", pipelines, *mine)


def alone(spines: Sequence[int], out: Path) -> list[Claim]:
    """What jobs cost each other, measured beside predicted, and nothing in the control."""
    plans: dict[str, Plan] = {}
    for count in spines:
        for name, workloads in ((f"{count} spines", jobs()), (f"{count} spines, nothing shared", apart())):
            plan, _ = with_policies(planned(topology(count), workloads), [choose(text) for text in REAL], REACH)
            plans[name] = with_alone(plan)
    claims = []
    for name, document in documents(plans, out).items():
        for table in jobs_tables(name, rows_of(document), 100):
            Console(width=100).print(table)
        rows = [row for row in document["schedules"] if row["alone_of"] is None]
        off = [abs(row["slowdown_measured"] / row["slowdown_predicted"] - 1) for row in rows]
        if "nothing" in name:
            off += [abs(row["slowdown_measured"] - 1) for row in rows]
        trusted = all(row["trusted"] for row in document["schedules"])
        got = f"worst {max(off):.3%} off{'' if trusted else ', NOT all trusted'}"
        what, asked = f"what jobs cost each other, {name}", f"<= {FREE_OF_OTHERS:.1%} off, trusted"
        claims.append(Claim(what, asked, got, trusted and max(off) <= FREE_OF_OTHERS, max(off), "share"))
    return claims


if __name__ == "__main__":
    sys.exit(main())
