"""Where counting flows goes wrong: pipelines mixed with rings, whose flows differ in bytes and in when they send.

`greedy`, the paper's, counts every flow 1. Against it: `greedy-bytes`; `greedy-time`, which looks at bytes that meet at
the same time; `interleave`, which moves the jobs' starts against each other by at most a quarter of the shorter
iteration, on the routes of greedy-time; and `joint,schedules=false`, the best routes that a search by the event model
finds.

The cases are every combination of what stands below; none is left out. Let r be the bytes of a ring's flow over those
of a pipeline's flow:

* clos: the two jobs of routing_lab.py, rings and pipelines in a Clos; spines 2, 4; r 1/4, 1, 4;
* mesh: one job of 2 x 4 ranks on a full mesh of four datacenters, its second replica one datacenter further than the
  first, so that every link carries activations, gradients and rings; delay of a link over T_F 0.05, 0.5; r 1/4, 1, 4.

The loss of greedy against another policy is by how much longer the worst job takes, each job over what it takes alone.

    python benchmarks/routing_time.py [--predict] [--kind clos mesh] [--out DIR]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import routing_joint
import routing_lab
from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.plan.plan import Plan
from testbed.planning.prediction import iteration_times, predict_jobs
from testbed.routing.apply import with_policies
from testbed.routing.policies import choose
from testbed.spec.workload import Workload

RATIOS = (0.25, 1.0, 4.0)
SPINES, DELAYS = (2, 4), (0.05, 0.5)
WIRE = 0.5
"""Of a message on a link of the mesh, in T_F."""

OTHERS = ("greedy-bytes", "greedy-time", "interleave", "joint,schedules=false,evaluations=800")
FLOW_BYTES = routing_lab.MICROBATCHES * routing_lab.Sizes().message
"""Of a pipeline's flow."""


class Mixed(NamedTuple):
    """A case."""

    kind: str
    place: float
    """Spines, or a link's delay over T_F."""
    ratio: float

    @property
    def name(self) -> str:
        """Of its row and its directory."""
        return f"{self.kind} {'spines' if self.kind == 'clos' else 'delay'} {self.place:g} r {self.ratio:g}"


def cases(kinds: Sequence[str]) -> list[Mixed]:
    """All of them."""
    clos = [Mixed("clos", *one) for one in product(SPINES, RATIOS)]
    mesh = [Mixed("mesh", *one) for one in product(DELAYS, RATIOS)]
    return [one for one in (*clos, *mesh) if one.kind in kinds]


def shifted_job(ratio: float) -> Workload:
    """One job whose second replica is one datacenter further; two replicas send half of the parameters, twice."""
    sites = routing_joint.SITES
    grid = [[f"{site}/0" for site in sites], [f"{site}/1" for site in sites[1:] + sites[:1]]]
    sizes = routing_lab.Sizes(ratio * FLOW_BYTES)
    return routing_lab.workload("shifted", grid, sizes, ["1f1b"], slot_s=routing_joint.FORWARD_S)


def plan_of(one: Mixed) -> Plan:
    """Its jobs under 1F1B, a case for every policy."""
    if one.kind == "clos":
        # a flow of a ring of four carries three quarters of the parameters, twice
        workloads = routing_lab.jobs(routing_lab.Sizes(one.ratio * FLOW_BYTES / 1.5))
        plan = routing_lab.planned(routing_lab.topology(int(one.place)), workloads)
    else:
        network = routing_joint.topology(routing_joint.Point("equal", one.place, WIRE))
        plan = routing_lab.planned(network, [shifted_job(one.ratio)])
    others = [text for text in OTHERS if text != "interleave" or len(plan.jobs) > 1]
    return with_policies(plan, [choose(text) for text in ("shortest", "greedy", *others)], routing_lab.REACH)[0]


def slowdowns(plan: Plan) -> dict[str, float]:
    """By policy, what the worst job takes over what it takes alone on default routes."""
    alone = [one.alone_s for one in predict_jobs(plan, plan.cases[0])]
    return {
        case.label.partition(" on ")[2]: max(
            seconds / baseline for seconds, baseline in zip(iteration_times(plan, case), alone, strict=True)
        )
        for case in plan.cases
    }


def heads_of() -> list[str]:
    """The policies that greedy is held against."""
    return ["shortest", *(choose(text).words for text in OTHERS)]


def losses(slow: Mapping[str, float]) -> list[str]:
    """Of greedy, against each of the others."""
    return [f"{slow['greedy'] / slow[name] - 1:+.1%}" if name in slow else "-" for name in heads_of()]


def main() -> int:
    """1 where something measured is not as predicted."""
    parser = options.parser(__doc__)
    parser.add_argument("--predict", action="store_true", help="nothing is trained")
    parser.add_argument("--kind", nargs="+", choices=("clos", "mesh"), default=["clos", "mesh"])
    options.add_out(parser, "routing-time", recorded=False)
    asked = parser.parse_args()
    plans = {}
    for one in cases(asked.kind):
        plans[one.name] = plan_of(one)
        print(one.name, {name: round(value, 4) for name, value in slowdowns(plans[one.name]).items()}, flush=True)
    slow = {name: slowdowns(plan) for name, plan in plans.items()}
    lines = [(name, f"{each['greedy']:.3f}", *losses(each)) for name, each in slow.items()]
    columns = ("case", "greedy: slowdown", "shortest", "greedy-bytes", "greedy-time", "interleave", "best routes found")
    show_table("how much longer the worst job takes under greedy than under ...", columns, lines, 120)
    lost = {head: [one["greedy"] / one[head] - 1 for one in slow.values() if head in one] for head in heads_of()}
    got = ", ".join(f"{head} {min(each):+.1%} to {max(each):+.1%}" for head, each in lost.items() if each)
    claims = [Claim(f"mixed traffic, {len(slow)} cases: what greedy loses, predicted", "(report)", got)]
    places = [] if asked.predict else routing_lab.places(plans, asked.out)
    if not asked.predict:
        rows = {name: routing_lab.predicted(plan) for name, plan in plans.items()}
        found = routing_lab.measured(plans, rows, asked.out)
        claims.append(routing_lab.claim_of(f"mixed traffic, {len(found)} cases measured", found))
    return finish(asked, Topic.ROUTING, claims, directories=places)


if __name__ == "__main__":
    sys.exit(main())
