"""Two jobs on links that they share: `interleave` beside CASSINI's shifts, and routes in the order of Crux' intensity.

The cases: pipelines of two jobs between two datacenters, over one link or over two, with so many microbatches, messages
and slots each; equal jobs, the same with messages and slots of other lengths, and jobs that send more than can be kept
apart. All jobs are trained in rounds. What counts is how much longer the worst job takes than alone on default routes.
A claim holds the measured times against the predicted ones; which policy is better is a report, once more for jobs that
run freely, each beginning its next iteration when it is done (the mean of so many; CASSINI there with a circle of a
multiple of all periods).

    python benchmarks/shared_links.py [--predict] [--iterations 120] [--out DIR]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import routing_lab
import routing_time
from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.plan.plan import Plan
from testbed.planning.free_training import free_times
from testbed.planning.prediction import loads_of_case, predict_jobs
from testbed.routing.apply import with_policies
from testbed.routing.policies import choose
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import Workload

POLICIES = ("shortest", "greedy-time", "interleave", "cassini", "crux")
FREELY = ("shortest", "greedy-time", "interleave", "cassini,circle=multiple", "crux")


class Sharer(NamedTuple):
    """One of the two jobs."""

    microbatches: int
    message_bytes: float
    slot_s: float
    """Of a forward, an input gradient and a weight gradient each."""


class Shared(NamedTuple):
    """A case."""

    links: int
    jobs: tuple[Sharer, Sharer]


CASES = {
    "equal": Shared(1, (Sharer(1, 500e3, 0.02), Sharer(1, 500e3, 0.02))),
    "equal, 3 microbatches": Shared(1, (Sharer(3, 250e3, 0.015), Sharer(3, 250e3, 0.015))),
    "unequal messages": Shared(1, (Sharer(2, 700e3, 0.021), Sharer(2, 330e3, 0.021))),
    "unequal slots": Shared(1, (Sharer(2, 410e3, 0.013), Sharer(2, 410e3, 0.029))),
    "unequal everything": Shared(1, (Sharer(3, 290e3, 0.017), Sharer(5, 170e3, 0.011))),
    "more than fits": Shared(1, (Sharer(7, 650e3, 0.007), Sharer(5, 810e3, 0.009))),
    "two links, unequal": Shared(2, (Sharer(5, 610e3, 0.012), Sharer(3, 190e3, 0.023))),
}


def plan_of(one: Shared, policies: Sequence[str] = POLICIES) -> Plan:
    """Its jobs under 1F1B, each on two pairs of nodes, a case for every policy."""
    network: dict[str, Any] = {
        "name": "shared",
        "datacenters": {"a": {"nodes": 4}, "b": {"nodes": 4}},
        "links": [
            {"between": ["a", "b"], "name": f"way{number}", "delay": f"{5 + 0.1 * number:g} ms", "rate": "200 Mbit/s"}
            for number in range(one.links)
        ],
    }
    workloads = [_workload(number, sharer) for number, sharer in enumerate(one.jobs)]
    plan = routing_lab.planned(validate(Topology, network, "shared"), workloads)
    return with_policies(plan, [choose(text) for text in policies], routing_lab.REACH)[0]


def _workload(number: int, sharer: Sharer) -> Workload:
    sizes, grid = routing_lab.Sizes(message=sharer.message_bytes), [[f"a/{number}", f"b/{number}"]]
    return routing_lab.workload("ab"[number], grid, sizes, ["1f1b"], sharer.slot_s, sharer.microbatches)


def freely_slow(plan: Plan, iterations: int) -> dict[str, float]:
    """By policy, the worst job's mean over so many iterations of jobs that run freely, over what it takes alone."""
    plan = replace(plan, rounds="free")
    found = {}
    for name, case in zip(POLICIES, plan.cases, strict=True):
        times = free_times(plan, case, loads_of_case(plan, case), iterations)
        alone = [one.alone_s for one in predict_jobs(plan, case)]
        found[name] = max(float(times.times_s(job).mean()) / alone_s for job, alone_s in enumerate(alone))
    return found


def gains(slow: Mapping[str, Mapping[str, float]]) -> str:
    """Of each policy over default routes without shifts, over the cases."""
    found = []
    for name in POLICIES[2:]:
        gained = [1 - each[name] / each["shortest"] for each in slow.values()]
        found.append(f"{name} {min(gained):.1%} to {max(gained):.1%}, mean {sum(gained) / len(gained):.1%}")
    return "; ".join(found)


def main() -> int:
    """1 where something measured is not as predicted."""
    parser = options.parser(__doc__)
    parser.add_argument("--predict", action="store_true", help="nothing is trained")
    parser.add_argument("--iterations", type=int, default=120, help="of jobs that run freely")
    options.add_out(parser, "shared-links", recorded=False)
    asked = parser.parse_args()
    plans = {name: plan_of(one) for name, one in CASES.items()}
    slow = {name: routing_time.slowdowns(plan) for name, plan in plans.items()}
    lines = [(name, *(f"{each[policy]:.4f}" for policy in POLICIES)) for name, each in slow.items()]
    show_table("worst job, over what it takes alone", ("case", *POLICIES), lines, 100)
    free = {name: freely_slow(plan_of(one, FREELY), asked.iterations) for name, one in CASES.items()}
    lines = [(name, *(f"{each[policy]:.4f}" for policy in POLICIES)) for name, each in free.items()]
    show_table("the same of jobs that run freely", ("case", *POLICIES), lines, 100)
    places = [] if asked.predict else routing_lab.places(plans, asked.out)
    claims = [Claim(f"{len(plans)} pairs of jobs in rounds: worst job's gain, predicted", "(report)", gains(slow))]
    claims.append(Claim(f"the same, run freely for {asked.iterations} iterations", "(report)", gains(free)))
    if not asked.predict:
        rows = {name: routing_lab.predicted(plan) for name, plan in plans.items()}
        found = routing_lab.measured(plans, rows, asked.out)
        claims.append(routing_lab.claim_of(f"jobs on shared links, {len(found)} pairs measured", found))
    return finish(asked, Topic.ROUTING, claims, directories=places)


if __name__ == "__main__":
    sys.exit(main())
