"""What `testbed route` takes at the size of arXiv:2503.05324's evaluation: 64 leaves x 32 spines x 32 hosts, five jobs.

Each job has four replicas of 22 stages under 1F1B, eight microbatches, unlike messages: 88 flows of rings and 168 of
pipelines, 1,280 flows in all. All policies that choose routes alone are compared by one command, `ecmp` with 20 seeds;
CPU seconds are its own, from its start, with every import. `interleave` and `joint` search until their time limit.

What is predicted of a choice is then predicted once more by itself, as `testbed predict` does, and must be the same to
the last bit.

    python benchmarks/routing_large.py [--jobs 5] [--policy NAME ...] [--out DIR]
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import routing_lab
from harness import options
from harness.boots import run_testbed
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.cli.plan import plan_of
from testbed.planning.prediction import iteration_times
from testbed.routing.apply import with_policies
from testbed.routing.policies import choose

LEAVES, SPINES, HOSTS = 64, 32, 32
REPLICAS, STAGES, JOBS = 4, 22, 5
POLICIES = (
    *("shortest", "ecmp", "static", "greedy", "greedy-bytes", "greedy-jobs", "greedy-time", "edge-coloring"),
    *("annealing", "ilp"),
)
MOST_CPU_S = 10.0
LIMIT_S = 900.0


def write_case(directory: Path, jobs: int) -> list[str]:
    """A topology and workloads as files; their paths, in the order of a command."""
    directory.mkdir(parents=True, exist_ok=True)
    shape = {"leaves": LEAVES, "spines": SPINES, "hosts": HOSTS, "rate": "100 Gbit/s", "delay": "10 us"}
    documents: list[dict[str, Any]] = [{"name": "paper-clos", "datacenters": {"pod": {"clos": shape}}}]
    # neighbours of a ring or a pipeline are in different leaves
    nodes = [f"pod-leaf{7 * number % LEAVES}/{number // LEAVES}" for number in range(jobs * REPLICAS * STAGES)]
    for job in range(jobs):
        first = job * REPLICAS * STAGES
        grid = [nodes[first + replica * STAGES : first + (replica + 1) * STAGES] for replica in range(REPLICAS)]
        sizes = routing_lab.Sizes(ring=20e6, message=2e6 + 1e5 * job)
        documents.append(routing_lab.workload_document(f"job{job}", grid, sizes, ["1f1b"]))
    paths = [directory / f"{document['name']}.yaml" for document in documents]
    for path, document in zip(paths, documents, strict=True):
        path.write_text(json.dumps(document), encoding="utf-8")
    return [str(path) for path in paths]


def routed(paths: Sequence[str], policies: Sequence[str]) -> tuple[dict[str, Any], float]:
    """The document of the command, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    asked = [word for name in policies for word in ("--policy", name)]
    code, document, said = run_testbed("route", *paths, *asked, limit_s=LIMIT_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code or document is None:
        raise SystemExit(f"route ended with {code}: {said}")
    return document, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_itself(paths: Sequence[str], policy: str) -> list[float]:
    """The iterations of the jobs, predicted of the plan that a policy makes."""
    plan, _ = with_policies(
        plan_of(Path(paths[0]), list(map(Path, paths[1:])), None, None, quiet=True), [choose(policy)]
    )
    return list(iteration_times(plan, plan.cases[0]))


def main() -> int:
    """1 where it takes longer than asked, or something is predicted otherwise by itself."""
    parser = options.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    options.add_out(parser, "routing-large", recorded=False)
    asked = parser.parse_args()
    paths = write_case(asked.out, asked.jobs)
    routed(paths[:2], ["greedy"])  # so that what is compiled is kept
    document, cpu_s = routed(paths, asked.policy)
    rows = [
        (one["policy"], f"{max(one['iteration_s']):.6f}", str(one["most_flows"]), f"{one['controller_s']:.2f}")
        for one in document["policies"]
    ]
    show_table(
        "policies at the paper's size", ("policy", "longest iteration, s", "most flows", "controller, s"), rows, 80
    )
    checked = [one for one in document["policies"] if one["policy"] in ("shortest", "greedy")]
    same = sum(one["iteration_s"] == by_itself(paths, one["policy"]) for one in checked)
    flows, count = len(document["flows"]), len(document["policies"])
    claims = [
        Claim(
            f"`testbed route` of {asked.jobs} jobs, {flows:,} flows, {len(asked.policy)} policies",
            f"<= {MOST_CPU_S:g} CPU s; each as predicted by itself",
            f"{cpu_s:.1f} CPU s for {count} choices of routes; {same} of {len(checked)} the same to the last bit",
            cpu_s <= MOST_CPU_S and same == len(checked),
            value=cpu_s,
            unit="s",
        )
    ]
    return finish(asked, Topic.ROUTING, claims)


if __name__ == "__main__":
    sys.exit(main())
