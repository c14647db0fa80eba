"""What is proven of routing policies, held against many random networks and an independent oracle.

* greedy puts at most twice as many flows on a direction of a Clos as there must be, in any order of flows; exactly as
  many as there must be where every leaf sends to one leaf alone and receives from one: replicas take whole leaves.
* Edge colouring puts exactly as many there as there must be: ceil(busiest leaf's flows / spines).
* Progressive filling gives what a sequence of linear programs gives (OR-tools' GLOP), which knows nothing of filling.

    python benchmarks/routing_optimality.py [--instances 10000] [--programs 500]
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from harness import options
from harness.record import Claim, Topic, finish
from oracles.clos import clos_problem

from testbed.routing.fairness import flows_per_direction, max_min_rates
from testbed.routing.policies import choose, route
from testbed.routing.routing_problem import RoutingProblem


class Instance(NamedTuple):
    problem: RoutingProblem
    optimum: int
    """Fewest flows on the most loaded direction that any choice can have."""


def _instance(leaves: int, spines: int, ends: np.ndarray) -> Instance:
    out = ends[ends[:, 0] != ends[:, 1]]
    busiest = max((int(np.bincount(out[:, side]).max()) for side in (0, 1)), default=0) if len(out) else 0
    return Instance(clos_problem(leaves, range(spines), ends), -(-busiest // spines))


def scattered(random: np.random.Generator) -> Instance:
    """Flows between hosts by chance: permutations of hosts, or any ends."""
    leaves, spines, hosts = (int(random.integers(low, high)) for low, high in ((2, 9), (1, 9), (1, 9)))
    if random.random() < 0.5:
        number = np.arange(leaves * hosts)
        ends = np.stack((number // hosts, random.permutation(number) // hosts), axis=1)
    else:
        ends = random.integers(leaves, size=(int(random.integers(1, 2 * leaves * hosts + 1)), 2))
    return _instance(leaves, spines, random.permutation(ends))


def rack_aligned(random: np.random.Generator) -> Instance:
    """Rings of replicas that take whole leaves, of one or several jobs: hosts send to their likes in the next leaf."""
    leaves, spines, hosts = (int(random.integers(low, high)) for low, high in ((2, 9), (1, 9), (1, 9)))
    order, ends, first = random.permutation(leaves), [], 0
    while leaves - first >= 2:
        size = int(random.integers(2, leaves - first + 1))
        ring = order[first : first + size]
        ends += [(a, b) for a, b in zip(ring, np.roll(ring, -1), strict=True) for _ in range(hosts)]
        first += size
    return _instance(leaves, spines, random.permutation(np.array(ends)))


def most(instance: Instance, policy: str) -> int:
    """Flows on the most loaded direction."""
    problem = instance.problem
    made = route(choose(policy), problem)
    return int(flows_per_direction(problem, made.choice)[: problem.n_links].max(initial=0))


def crossings(random: np.random.Generator) -> tuple[list[list[int]], np.ndarray]:
    """Flows over any directions, each at least one, and the directions' rates."""
    links, flows = int(random.integers(1, 7)), int(random.integers(1, 8))
    crossed = [
        sorted(random.choice(links, size=int(random.integers(1, links + 1)), replace=False).tolist())
        for _ in range(flows)
    ]
    return crossed, random.integers(1, 9, size=links).astype(np.float64)


def filled(crossed: list[list[int]], rates: np.ndarray) -> np.ndarray:
    """Progressive filling."""
    first = np.concatenate(([0], np.cumsum([len(one) for one in crossed]))).astype(np.int64)
    return max_min_rates(first, np.array([link for one in crossed for link in one], np.int64), rates)


def by_linear_programs(crossed: list[list[int]], rates: np.ndarray) -> np.ndarray:
    """Max-min-fair rates by definition: the least as large as can be, then the least of those that can have more ..."""
    from ortools.linear_solver import pywraplp

    fixed: dict[int, float] = {}

    def largest(aim: int | None, floor: float) -> float:
        """The largest common rate of all that are not fixed, or that of flow `aim` while the others have `floor`."""
        solver = pywraplp.Solver.CreateSolver("GLOP")
        level = solver.NumVar(0.0, solver.infinity(), "level")
        rate = [solver.NumVar(0.0, solver.infinity(), f"r{flow}") for flow in range(len(crossed))]
        for link, capacity in enumerate(rates.tolist()):
            solver.Add(sum((rate[f] for f, over in enumerate(crossed) if link in over), 0.0 * level) <= capacity)
        for flow in range(len(crossed)):
            if flow in fixed:
                solver.Add(rate[flow] == fixed[flow])
            else:
                solver.Add(rate[flow] >= (level if aim is None else floor))
        solver.Maximize(level if aim is None else rate[aim])
        assert solver.Solve() == pywraplp.Solver.OPTIMAL
        return float(solver.Objective().Value())

    while len(fixed) < len(crossed):
        level = largest(None, 0.0)
        free = [flow for flow in range(len(crossed)) if flow not in fixed]
        stuck = [flow for flow in free if largest(flow, level * (1 - 1e-9)) <= level * (1 + 1e-6)]
        assert stuck, "the least rate could grow"
        fixed |= dict.fromkeys(stuck, level)
    return np.array([fixed[flow] for flow in range(len(crossed))])


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=500)
    asked = parser.parse_args()
    random = np.random.default_rng(1)
    ratios: Counter[str] = Counter()
    wrong = 0
    for _ in range(asked.instances):
        one, aligned = scattered(random), rack_aligned(random)
        got = most(one, "greedy")
        ratios["= optimum" if got == one.optimum else "above"] += 1
        wrong += got > 2 * one.optimum
        wrong += most(one, "edge-coloring") != one.optimum
        wrong += most(aligned, "greedy") != aligned.optimum or most(aligned, "edge-coloring") != aligned.optimum
    print(f"{asked.instances} random and as many rack-aligned instances: greedy on random ones {dict(ratios)}")
    print(f"greedy above 2 x optimum, above it on rack-aligned ones, or edge colouring not at it: {wrong}")
    far = 0.0
    for _ in range(asked.programs):
        crossed, rates = crossings(random)
        exact = by_linear_programs(crossed, rates)
        far = max(far, float(np.max(np.abs(filled(crossed, rates) - exact) / exact)))
    print(f"{asked.programs} sets of flows: filling is off the linear programs by at most {far:.1e}")
    of, best = asked.instances, f"greedy = OPT in {ratios['= optimum']:,} random ones"
    optimal = f"greedy <= 2 OPT on {of:,} random instances, = OPT on {of:,} rack-aligned; edge colouring = OPT"
    filling = f"progressive filling against {asked.programs} linear programs"
    claims = [
        Claim(optimal, "each", f"{wrong} otherwise; {best}", not wrong, float(wrong), "instances"),
        Claim(filling, "<= 1e-6", f"{far:.0e}", far < 1e-6, far),
    ]
    return finish(asked, Topic.ROUTING, claims)


if __name__ == "__main__":
    raise SystemExit(main())
