"""Every policy at the size of arXiv:2503.05324's evaluation: 64 leaves x 32 spines x 32 hosts, 100 Gbit/s everywhere.

Network, models, rings and failures are those of the simulator that very likely belongs to the paper
(ofircohen205/dcn-simulators): data-parallel ring all-reduces alone, a ring per GPU position over 2, 4 or 8 replicas,
1 to 5 jobs of random models, 0, 1, 4 or 8 dead spines. Ours are: placement (below), one all-reduce of all jobs from one
common start instead of ten epochs apart, and routes chosen once for all flows. None of the numbers is the paper's.

`filled`: replicas take whole leaves, in random order. `scattered`: servers of 8 GPUs anywhere.

    python benchmarks/routing_clos.py [--draws 1] [--placement filled] [--policy NAME ...] [--jobs 1 2 ...]
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from harness import options
from harness.record import Claim, Topic, each, finish
from harness.report import show_table
from oracles import rings
from oracles.clos import clos_problem

from testbed.routing.fairness import measured_by
from testbed.routing.policies import PolicyChoice, choose, route
from testbed.routing.routing_problem import RoutingProblem

LEAVES, SPINES, HOSTS, SERVER = 64, 32, 32, 8
RATE_BPS = 100e9
MODELS = {"gpt3-175b": (175e9, 64), "bloom-176b": (176e9, 48), "llama2-70b": (70e9, 128)}
"""Parameters, and GPUs of a replica (TP x PP)."""

RINGS = {1: (2, 4, 8), 2: (2, 4, 8), 3: (2, 4, 8), 4: (2, 4), 5: (2, 4)}
"""Per number of jobs, the data-parallel degrees that fit."""

DEAD = (0, 1, 4, 8)
POLICIES = ("ecmp", "static", "greedy", "greedy-bytes", "greedy-jobs", "edge-coloring", "annealing")


class Case(NamedTuple):
    """Rings of all jobs on the Clos."""

    problem: RoutingProblem
    ring: np.ndarray
    """Per flow."""
    ring_job: np.ndarray
    steps: np.ndarray
    """Per ring: reduce-scatter, then all-gather."""
    message_bits: np.ndarray
    optimum: int
    """Fewest flows on the most loaded direction: the busiest leaf's, over the living spines (Koenig)."""


def placed(
    jobs: Sequence[tuple[float, int]], replicas: int, placement: str, random: np.random.Generator
) -> list[np.ndarray]:
    """Per job an array (replica, GPU) of hosts."""
    servers = HOSTS // SERVER
    if placement == "filled":
        leaves = random.permutation(LEAVES)
        order = (leaves[:, None] * servers + np.arange(servers)).reshape(-1)
    else:
        order = random.permutation(LEAVES * servers)
    hosts = (order[:, None] * SERVER + np.arange(SERVER)).reshape(-1)
    found, taken = [], 0
    for _, gpus in jobs:
        size = replicas * gpus
        found.append(hosts[taken : taken + size].reshape(replicas, gpus))
        taken += size
    return found


def drawn(n_jobs: int, replicas: int, dead: int, placement: str, seed: int) -> Case:
    """A case by chance; models are drawn again until all jobs fit."""
    random = np.random.default_rng((seed, n_jobs, replicas))  # the same jobs for every number of dead spines
    while True:
        names = [list(MODELS)[number] for number in random.integers(len(MODELS), size=n_jobs)]
        jobs = [MODELS[name] for name in names]
        if sum(gpus for _, gpus in jobs) * replicas <= LEAVES * HOSTS:
            break
    source, target, job, ring, bits = [], [], [], [], []
    ring_job: list[int] = []
    for number, ((parameters, gpus), hosts) in enumerate(
        zip(jobs, placed(jobs, replicas, placement, random), strict=True)
    ):
        for position in range(gpus):
            members = hosts[:, position]
            source += members.tolist()
            target += np.roll(members, -1).tolist()
            job += [number] * replicas
            ring += [len(ring_job)] * replicas
            ring_job.append(number)
            bits.append(8 * math.ceil(4 * parameters / gpus) / replicas)
    a, b = np.array(source), np.array(target)
    steps = np.full(len(ring_job), 2 * (replicas - 1))
    sizes = np.array(bits)[ring] / 8 * steps[ring]
    ends = np.stack((a // HOSTS, b // HOSTS), axis=1)
    alive = range(SPINES - dead)
    problem = clos_problem(
        LEAVES, alive, ends, job=np.array(job), wire_bytes=sizes, target_host=b % HOSTS, host=a, rate_bps=RATE_BPS
    )
    out = ends[ends[:, 0] != ends[:, 1]]
    busiest = max((int(np.bincount(out[:, side]).max()) for side in (0, 1)), default=0) if len(out) else 0
    optimum = -(-busiest // len(alive))
    return Case(problem, np.array(ring), np.array(ring_job), steps, np.array(bits), optimum)


def all_reduce_s(case: Case, choice: np.ndarray) -> np.ndarray:
    """Per job, seconds until its slowest ring is reduced."""
    first, crossed = case.problem.crossed(choice)
    sizes = case.ring, case.steps, case.message_bits
    ends_s = rings.compiled().reduce_rings(first, crossed, case.problem.rate_bps, *sizes)
    found = np.zeros(case.problem.n_jobs)
    np.maximum.at(found, case.ring_job, ends_s)
    return found


class Row(NamedTuple):
    most: int
    worst_gbps: float
    slowest_s: float
    mean_s: float
    took_ms: float


def judged(case: Case, chosen: PolicyChoice) -> Row:
    made = route(chosen, case.problem)
    metric, seconds = measured_by(case.problem, made.choice), all_reduce_s(case, made.choice)
    return Row(
        metric.most_flows, metric.vector()[0] / 1e9, float(seconds.max()), float(seconds.mean()), 1e3 * made.seconds
    )


class Drawn(NamedTuple):
    """A case under one policy, beside greedy."""

    row: Row
    greedy: Row | None
    optimum: int

    @property
    def ratio(self) -> float:
        """Its slowest all-reduce over greedy's."""
        return math.nan if self.greedy is None else self.row.slowest_s / self.greedy.slowest_s


def summed_up(label: str, mine: Sequence[Drawn]) -> tuple[str, ...]:
    """A policy's row: how often it is optimal, its most flows, all-reduces over greedy's, and what it took."""
    ratios, took = [one.ratio for one in mine], [one.row.took_ms for one in mine]
    best = sum(one.row.most == one.optimum for one in mine)
    times = (f"{of(ratios):.2f}" for of in (min, statistics.median, max))
    taken = f"{statistics.median(took):.1f}", f"{max(took):.1f}"
    return label, f"{best}/{len(mine)}", str(max(one.row.most for one in mine)), *times, *taken


def claims_of(rows: Mapping[str, Sequence[Drawn]], placement: str) -> list[Claim]:
    """That greedy is within twice the optimum, edge colouring at it; how much slower ECMP reduces than greedy."""
    claims = []
    for label, mine in rows.items():
        what = f"{label}'s most flows on a link, {placement}"
        if label == "edge-coloring":
            claims.append(each(what, sum(one.row.most != one.optimum for one in mine), len(mine), "= optimum"))
        if label.startswith("greedy") and label != "greedy-bytes":
            over = sum(one.row.most > 2 * max(one.optimum, 1) for one in mine)
            claims.append(each(what, over, len(mine), "<= 2 x optimum"))
        if label.startswith("ecmp") and mine[0].greedy is not None:
            ratios = [one.ratio for one in mine]
            middle, of = statistics.median(ratios), len(mine)
            got = f"{min(ratios):.2f} to {max(ratios):.2f}, median {middle:.2f}"
            what = f"{LEAVES} leaves x {SPINES} spines, {placement}: slowest all-reduce of {label} over greedy's"
            claims.append(Claim(what, "(report)", got, None, middle, "times", of, of))
    return claims


def main() -> int:
    """1 where greedy or edge colouring has more flows on a link than it may."""
    parser = options.parser(__doc__)
    parser.add_argument("--draws", type=int, default=1, help="placements and models of each size")
    parser.add_argument("--seeds", type=int, default=3, help="of ecmp and annealing: the median by slowest all-reduce")
    parser.add_argument("--placement", choices=("filled", "scattered"), default="filled")
    parser.add_argument("--policy", action="append", help=f"default: {', '.join(POLICIES)}")
    parser.add_argument("--jobs", type=int, nargs="+", default=list(RINGS), choices=list(RINGS))
    asked = parser.parse_args()
    policies = [choose(name) for name in asked.policy or POLICIES]
    for one in policies:  # so that nothing is compiled while a policy is timed
        judged(drawn(3, 2, 0, asked.placement, 0), one)
    rows: dict[str, list[Drawn]] = {one.label: [] for one in policies}
    print(f"{asked.placement}: most flows on a link / worst job's rate, Gbit/s / slowest job's all-reduce, s")
    sizes = [(n_jobs, replicas) for n_jobs in asked.jobs for replicas in RINGS[n_jobs]]
    for (n_jobs, replicas), dead, draw in product(sizes, DEAD, range(asked.draws)):
        case = drawn(n_jobs, replicas, dead, asked.placement, draw)
        found = {one.label: _median(case, one, asked.seeds) for one in policies}
        for label, row in found.items():
            rows[label].append(Drawn(row, found.get("greedy"), case.optimum))
        cells = [f"{label} {r.most}/{r.worst_gbps:.0f}/{r.slowest_s:.2f}" for label, r in found.items()]
        head = f"jobs {n_jobs} ring {replicas} dead {dead} flows {case.problem.n_flows:4} opt {case.optimum}"
        print(head, *cells, flush=True)
    columns = ("policy", "= optimum", "most", "least", "median", "largest", "median ms", "largest ms")
    lines = [summed_up(label, mine) for label, mine in rows.items()]
    show_table("slowest all-reduce over greedy's, and what choosing took", columns, lines)
    return finish(asked, Topic.ROUTING, claims_of(rows, asked.placement), clock="none")


def _median(case: Case, chosen: PolicyChoice, seeds: int) -> Row:
    if not chosen.takes("seed") or "seed" in chosen.options:
        return judged(case, chosen)
    drawn_ = sorted((judged(case, chosen.with_seed(seed)) for seed in range(1, seeds + 1)), key=lambda r: r.slowest_s)
    return drawn_[len(drawn_) // 2]


if __name__ == "__main__":
    raise SystemExit(main())
