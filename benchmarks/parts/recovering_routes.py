"""Jobs that leave a route which is slow for a while, drawn by seed: does one come back in time?"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, NamedTuple

from testbed.adaptation.adaptable_job import AdaptableJob, adaptable_job, planned_belief
from testbed.adaptation.may_change import MayChange
from testbed.adaptation.prospects import Prospects
from testbed.plan.network_state import planned
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import choose

BEFORE, AFTER = 5, 40
SHORTEST, LONGEST = 40, 60
"""Iterations that a route is slow for."""

TRIANGLE = {
    "name": "triangle",
    "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 1}, "c": {"nodes": 1}},
    "links": [
        {"name": "ab", "between": ["a", "b"], "delay": "3 ms", "rate": "1 Gbit/s"},
        {"name": "ac", "between": ["c", "a"], "delay": "3 ms", "rate": "1 Gbit/s"},
        {"name": "bc", "between": ["b", "c"], "delay": "25 ms", "rate": "400 Mbit/s"},
    ],
}
"""From b to c over a: once it does so no more, a look at that is in the way of what a and b send each other."""


class RecoveringRoute(NamedTuple):
    """A job, what happens, and how long it trains."""

    name: str
    subject: AdaptableJob
    event: str
    iterations: int


def link(draw: random.Random, name: str, between: list[str]) -> dict[str, Any]:
    """One of a wide area, as a topology has it."""
    delay, rate = f"{draw.uniform(2, 20):.2f} ms", f"{draw.choice((300, 500, 1000))} Mbit/s"
    return {"name": name, "between": between, "delay": delay, "rate": rate}


def job(
    draw: random.Random, ranks: int, *, slots_ms: tuple[float, float], message_mb: tuple[float, float]
) -> dict[str, Any]:
    """A workload of so many ranks, with slots and messages between these."""
    return {
        "name": "drawn",
        "model": {"layers": ranks, "d_model": 32, "heads": 2, "sequence": 32},
        "parallelism": {"pipeline": ranks},
        "microbatches": draw.randint(6, 16),
        "microbatch_size": 1,
        "pacing": {kind: f"{draw.uniform(*slots_ms):.2f} ms" for kind in "FIW"},
        "message": f"{draw.uniform(*message_mb):.2f} MB",
        "memory": draw.randint(ranks, 2 * ranks),
        "schedules": ["1f1b"],
    }


def drawn(number: int, seed: int, schedules: tuple[str, ...]) -> RecoveringRoute:
    """Two datacenters with two or three links between them, or three with a link between any two; a link that the job
    begins with is slow for a while, and AFTER more iterations are trained."""
    draw = random.Random(f"recovering/{seed}/{number}")
    ranks, sites = draw.randint(4, 6), [f"dc{index}" for index in range(draw.choice((2, 3)))]
    pairs = (
        [(sites[0], sites[1])] * draw.choice((2, 3)) if len(sites) == 2 else [*pairwise(sites), (sites[2], sites[0])]
    )
    links = [link(draw, f"link{place}", draw.sample(pair, 2)) for place, pair in enumerate(pairs)]
    nodes = {site: {"nodes": -(-ranks // len(sites))} for site in sites}
    topology: dict[str, Any] = {"name": "drawn", "datacenters": nodes, "links": links}
    plan = load_plan(topology, job(draw, ranks, slots_ms=(5, 20), message_mb=(0.2, 2.5)))
    subject = adaptable_job(plan, choose(plan, schedules), MayChange(routes=2))
    begins = Prospects(subject).to_begin_with(planned_belief(subject)).setting
    used = sorted({planned(plan.network).links[index].link for path in begins.paths for index in path.route})
    lasts = draw.randint(SHORTEST, LONGEST)
    how = draw.choice((f"rate x{draw.uniform(0.08, 0.4):.3f}", f"delay x{draw.uniform(4, 10):.2f}"))
    event = f"link {draw.choice(used)} {how} at {BEFORE} to {BEFORE + lasts}"
    return RecoveringRoute(f"route drawn {number}: {how} for {lasts}", subject, event, BEFORE + lasts + AFTER)
