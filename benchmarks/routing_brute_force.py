"""`interleave` and `joint` against every choice there is, on small cases drawn at random.

    python benchmarks/routing_brute_force.py [--starts 25] [--routes 24] [--first 0]

Two pipelines of two stages between two datacenters, with slots, messages and microbatches of their own. For starts: one
link, and offsets of either job at 64 places up to `within` = 0.3 of the shorter iteration; both orders of the jobs are
asked. For routes: two or three unlike links, so 16 or 81 choices. The figure is the worst job's iteration over what it
takes alone; `interleave` may beat its brute force, which looks at places only.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from harness import options
from harness.record import Claim, Topic, finish

from testbed.plan.plan import Case, Plan
from testbed.plan.routes import nodes_of_ranks
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import make_plan
from testbed.planning.schedules import choose, make, with_selected
from testbed.routing.apply import demands, with_policies
from testbed.routing.case_evaluator import CaseEvaluator
from testbed.routing.planner import Reach
from testbed.routing.policies import choose as policy
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

WITHIN, PLACES = 0.3, 64
REACH = Reach(elephants_from=0.0)
TIE = 1e-3
"""A brute force over places may be beaten, and the search between its own may miss by less than this."""


class Drawn(NamedTuple):
    """A network and what trains on it."""

    topology: Topology
    jobs: tuple[Workload, ...]

    def plan(self, order: Sequence[int] = (0, 1)) -> Plan:
        """1F1B of the jobs, named in this order."""
        plan = make_plan(self.topology, *(self.jobs[one] for one in order))
        every = range(len(self.jobs))
        return with_selected(plan, [make(plan, choose(plan, ["1f1b"], job=job), job=job) for job in every])


def drawn(number: int, *, links: bool) -> Drawn:
    """The case of that number; with one link, or several."""
    draw = random.Random(number)
    between = [
        {"between": ["a", "b"], "name": f"l{one}", "delay": f"{draw.choice((1, 3, 5, 9))} ms"}
        | {"rate": f"{draw.choice((60, 100, 150))} Mbit/s"}
        for one in range(draw.choice((2, 3)) if links else 1)
    ]
    sites = {site: {"nodes": 2} for site in "ab"}
    topology = validate(Topology, {"name": "two", "datacenters": sites, "links": between}, "topology")
    return Drawn(topology, tuple(_job(draw, number) for number in range(2)))


def _job(draw: random.Random, number: int) -> Workload:
    ends = ["a", "b"] if draw.random() < 0.7 else ["b", "a"]
    document = {
        "name": f"job-{number}",
        "model": {"layers": 2, "d_model": 16, "heads": 2, "sequence": 16},
        "parallelism": {"pipeline": 2},
        "placement": [f"{site}/{number}" for site in ends],
        "microbatches": draw.choice((1, 2, 4, 6)),
        "microbatch_size": 1,
        "pacing": dict.fromkeys("FIW", f"{draw.choice((10, 13, 20, 31))} ms"),
        "message": f"{draw.choice((200, 350, 500))} kB",
        "schedules": ["1f1b"],
    }
    return validate(Workload, document, f"job-{number}")


def _worst(judge: CaseEvaluator, plan: Plan, case: Case) -> float:
    """The worst job's iteration over what it takes alone."""
    return max(one / alone for one, alone in zip(iteration_times(plan, case), judge.baseline_s, strict=True))


def _judge(plan: Plan) -> CaseEvaluator:
    return CaseEvaluator(plan, 10**6, 3600.0, ("brute force", None))


class Starts(NamedTuple):
    """The worst job's slowdown."""

    orders: tuple[float, ...]
    """By `interleave`, for either order of the jobs."""
    best: float


def starts(number: int) -> Starts:
    """A case of `interleave`, and every offset of either job."""
    one = drawn(number, links=False)
    found = []
    for order in ((0, 1), (1, 0)):
        plan = one.plan(order)
        planned, _ = with_policies(plan, [policy(f"interleave,within={WITHIN}")], REACH)
        found.append(_worst(_judge(plan), planned, planned.cases[0]))
    plan = one.plan()
    judge = _judge(plan)
    step_s = WITHIN * min(judge.baseline_s) / PLACES
    pairs = [(place * step_s, 0.0) for place in range(PLACES + 1)] + [(0.0, p * step_s) for p in range(1, PLACES + 1)]
    cases = (replace(plan.cases[0], starts_s=pair) for pair in pairs)
    return Starts(tuple(found), min(_worst(judge, plan, case) for case in cases))


class Routes(NamedTuple):
    """The worst job's slowdown."""

    joint: float
    best: float
    choices: int
    """All that there are."""


def routes(number: int) -> Routes:
    """A case of `joint` without schedules, and every choice of routes."""
    plan = drawn(number, links=True).plan()
    planned, _ = with_policies(plan, [policy("joint,schedules=false")], REACH)
    # other routes may allow less of a super-packet: all choices are compared with what the plan has now
    plan = replace(plan, framing=planned.framing)
    judge, (case,) = _judge(plan), plan.cases
    wanted, nodes = demands(plan, case, REACH), nodes_of_ranks(plan)
    pairs = [(one.source, one.target) for one in wanted.elephants]
    found, count = [], 0
    for chosen in product(*(wanted.problem.routes_of(flow) for flow in range(len(pairs)))):
        ways = dict(zip(pairs, chosen, strict=True))
        taken = tuple(ways[nodes[flow.source], nodes[flow.target]] for flow in plan.flows)
        found.append(_worst(judge, plan, replace(case, routes=taken)))
        count += 1
    return Routes(_worst(judge, planned, planned.cases[0]), min(found), count)


def main() -> int:
    """1 where a search misses what there is, or the order of the jobs decides."""
    parser = options.parser(__doc__)
    parser.add_argument("--starts", type=int, default=25)
    parser.add_argument("--routes", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.starts)
    moved = {number: starts(number) for number in numbers}
    behind = {number: max(one.orders) / one.best - 1 for number, one in moved.items()}
    apart = {number: max(one.orders) / min(one.orders) - 1 for number, one in moved.items()}
    routed = {number: routes(number) for number in range(asked.first, asked.first + asked.routes)}
    lost = {number: one.joint / one.best - 1 for number, one in routed.items()}
    worst = {number: max(behind[number], apart[number]) for number in numbers}
    claims = []
    for what, found, allowed in (
        ("interleave behind every offset of either job, and by the order of the jobs", worst, TIE),
        ("joint behind every choice of routes", lost, 1e-9),
    ):
        over = [number for number, value in found.items() if value > allowed]
        most, of = max(found.values(), default=0.0), len(found)
        got = f"{of - len(over)} of {of}, at most {most:+.2%}{f': cases {over}' if over else ''}"
        claims.append(Claim(what, f"<= {allowed:.1%}", got, not over, most, "share", of, of))
    return finish(asked, Topic.ROUTING, claims)


if __name__ == "__main__":
    sys.exit(main())
