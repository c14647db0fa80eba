"""How long a controller takes to choose routes: 2,048 flows over 32 spines, and how that grows with flows.

python benchmarks/routing_controller.py [--repeats 30]
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from harness import options
from harness.record import Claim, Topic, finish
from oracles.clos import clos_problem

from testbed.routing.policies import choose, route
from testbed.routing.routing_problem import RoutingProblem

LEAVES, SPINES, HOSTS = 64, 32, 32
POLICIES = ("greedy", "greedy-bytes", "greedy-jobs", "edge-coloring")
FLOWS = (2_048, 4_096, 8_192, 16_384, 32_768)
MOST_MS = 50.0
"""For 2,048 flows."""


def drawn(flows: int, seed: int) -> RoutingProblem:
    """Every host sends as many flows as it receives, to hosts by chance."""
    random = np.random.default_rng(seed)
    hosts = LEAVES * HOSTS
    targets = np.concatenate([random.permutation(hosts) for _ in range(flows // hosts)])
    sources = np.tile(np.arange(hosts), flows // hosts)
    ends = np.stack((sources // HOSTS, targets // HOSTS), axis=1)
    sizes = random.uniform(1e6, 1e9, flows)
    return clos_problem(LEAVES, range(SPINES), ends, job=sources % 5, wire_bytes=sizes, target_host=targets % HOSTS)


def milliseconds(name: str, flows: int, repeats: int) -> list[float]:
    """Of the policy alone; candidates are a property of the network, and known before."""
    chosen = choose(name)
    problems = [drawn(flows, seed) for seed in range(3)]
    for problem in problems:
        route(chosen, problem)
    return [1e3 * route(chosen, problems[number % 3]).seconds for number in range(repeats)]


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    asked = parser.parse_args()
    begin = time.perf_counter()
    _ = drawn(FLOWS[0], 0).routes
    print(f"candidates of {FLOWS[0]} flows as arrays, once per network: {1e3 * (time.perf_counter() - begin):.0f} ms")
    claims = []
    print(f"{'policy':14} {'flows':>6} {'least':>10} {'median':>10} {'least per flow':>15}")
    for name in POLICIES:
        for flows in FLOWS:
            took = milliseconds(name, flows, asked.repeats)
            median = statistics.median(took)
            least = min(took)
            print(f"{name:14} {flows:6} {least:7.2f} ms {median:7.2f} ms {1e3 * least / flows:12.3f} us", flush=True)
            if flows == FLOWS[0] and name == "greedy":
                got = f"{least:.2f} ms least, {median:.2f} median"
                what = f"greedy routing, {flows:,} flows over 32 spines"
                claims.append(Claim(what, f"<= {MOST_MS:g} ms", got, median <= MOST_MS, median / 1e3, "s"))
    return finish(asked, Topic.SPEED, claims, clock="real")


if __name__ == "__main__":
    raise SystemExit(main())
