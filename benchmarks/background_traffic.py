"""Traffic beside the jobs, real datagrams: what iterations take, against the model, which has them one by one.

The cases: pipelines of two and three datacenters, one job or two, with constant rates in the directions of their links,
from a twentieth to most of the rate that is left; messages of many super-packets and of few.

    python benchmarks/background_traffic.py [--out DIR]
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, NamedTuple

import routing_lab
from harness import options
from harness.record import Claim, Topic, finish
from harness.report import show_table

from testbed.plan.plan import Background, Plan
from testbed.planning.prediction import iteration_times
from testbed.spec.document import validate
from testbed.spec.topology import Topology

LARGEST_ERROR = 5e-4


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
    return replace(plan, background=tuple(Background(ends[0], ends[1], rate * 1e6) for ends, rate in one.rates.items()))


def main() -> int:
    """1 where something measured is not as predicted."""
    parser = options.parser(__doc__)
    options.add_out(parser, "background-traffic", recorded=False)
    asked = parser.parse_args()
    plans = {name: routing_lab.with_iterations(plan_of(one), 2, 1) for name, one in CASES.items()}
    lines, off, wrong = [], [], []
    for name, document in routing_lab.documents(plans, asked.out).items():
        plan = plans[name]
        without = iteration_times(replace(plan, background=()), plan.cases[0])
        for row, alone_s in zip(document["schedules"], without, strict=True):
            error, added = row["error"], row["predicted_s"] / alone_s - 1
            off.append(abs(error))
            if abs(error) > LARGEST_ERROR or not row["trusted"]:
                wrong.append(name)
                print(f"{name}: {'; '.join(row['reasons'])}", file=sys.stderr)
            times = f"{1e3 * row['measured_s']:.3f} ms", f"{1e3 * row['predicted_s']:.3f} ms"
            lines.append((name, *times, f"{error:+.4%}", f"{added:+.2%}", "yes" if row["trusted"] else "NO"))
    show_table("traffic beside the jobs", ("case", "measured", "predicted", "error", "it adds", "trusted"), lines, 100)
    got = f"worst {max(off):.4%}, {len(off)} iteration times of {len(plans)} plans" + (
        f"; not: {wrong}" if wrong else ""
    )
    what = "traffic beside jobs, real datagrams, virtual clock"
    claim = Claim(what, f"<= {LARGEST_ERROR:.2%}, trusted", got, not wrong, max(off), "share of the prediction")
    return finish(asked, Topic.TRUTH, [claim], directories=routing_lab.places(plans, asked.out))


if __name__ == "__main__":
    sys.exit(main())
