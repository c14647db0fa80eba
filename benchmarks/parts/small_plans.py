"""Small plans at random: `best` is never slower at worst than any schedule that it stands for, and never fails."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from harness.options import ROOT
from harness.plans import made

from testbed.errors import DoesNotFit
from testbed.model.lower import Load
from testbed.model.simulate import makespan
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem, Receives
from testbed.plan.costs import problem
from testbed.plan.plan import Plan
from testbed.planning.schedules import candidates, every_choice, make
from testbed.planning.ties import ranges_of_orders, worst_s
from testbed.spec.choice import ScheduleChoice
from testbed.spec.workload import load_workload

WORKLOAD = ROOT / "workloads/tiny-gpt-pp4.yaml"
TIMES = ("0 s", "50 us", "200 us", "300 us", "1 ms", "1.5 ms", "7 ms")
LISTED = (
    "{schedule: crosspipe-greedy, n_sub: 1}",
    "{schedule: crosspipe-greedy, n_sub: 3, label: in thirds}",
    "{schedule: geopipe, extra: 2}",
    "{schedule: zb-h1}",
)
"""What a workload lists: families with options of its own; all others are tried without."""


def drawn(random: Random) -> Plan:
    """A plan of 2 to 4 ranks over 2 or 3 datacenters, and few microbatches."""
    ranks, sites = random.choice((2, 3, 4)), random.choice((2, 3))
    nodes = {f"d{n}": {"nodes": ranks} for n in range(sites)}
    links = [
        {
            "between": [f"d{n}", f"d{n + 1}"],
            "delay": random.choice(TIMES[1:]),
            "rate": random.choice(("100 Mbit/s", "1 Gbit/s")),
        }
        for n in range(sites - 1)
    ]
    document: dict[str, Any] = {"name": "small", "datacenters": nodes, "links": links}
    settings = {
        "parallelism.pipeline": str(ranks),
        "microbatches": str(random.choice((1, 2, 3, 5, 6))),
        "model.layers": "8",
        "message": random.choice(("70 kB", "300 kB")),
        "pacing": f"{{{', '.join(f'{kind}: {_times(random, ranks)}' for kind in 'FIW')}}}",
        "recompute": random.choice(("false", "true")),
        "memory": random.choice(("1", "1.3", "1.5", "2", "2.7", "4", "8")),
        "placement": f"[{', '.join(f'd{min(rank * sites // ranks, sites - 1)}/{rank}' for rank in range(ranks))}]",
        "schedules": f"[best, {{schedule: search, evaluations: 12}}, {', '.join(random.sample(LISTED, 2))}]",
    }
    return made(document, load_workload(WORKLOAD, settings))


def _times(random: Random, ranks: int) -> str:
    drawn_times = [random.choice(TIMES[1:]) for _ in range(ranks)]
    return f"[{', '.join(drawn_times)}]" if random.random() < 0.6 else drawn_times[0]


def _worst_s(of: Problem, schedule: Schedule, receives: Receives) -> float:
    """What a schedule may take, by who comes first of messages that meet: by that `best` chooses."""
    (predicted_range,) = ranges_of_orders([Load(of, schedule, 0.0, receives)])
    return worst_s(makespan(of, schedule), predicted_range)


def check(seed: int) -> Counter[str]:
    """One plan: what was seen of it, and under "wrong: ..." what must not be."""
    plan = drawn(Random(seed))
    best = ScheduleChoice(schedule="best")
    found = candidates(plan, every_choice(plan)).found
    try:
        chosen = make(plan, [best])
    except DoesNotFit:
        return Counter({"plans that nothing fits": 1, "wrong: `best` finds nothing that fits": int(bool(found))})
    (label,) = chosen.made
    (choice,) = chosen.choices
    receives = plan.jobs[0].workload.receives
    at_worst_s = _worst_s(problem(plan, choice), chosen.made[label].schedule, receives)
    slower = [one for one in found if at_worst_s > _worst_s(one.problem, one.generated.schedule, receives) * (1 + 1e-9)]
    seen = Counter({"plans": 1, "schedules that `best` stands for": len(found)})
    seen["wrong: `best` is slower than a family"] += bool(slower)
    return seen
