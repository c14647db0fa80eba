"""A ring whose replicas go round in a bad order: predictions say which order would be faster."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testbed.plan.plan import Plan
from testbed.planning import ring_order
from testbed.planning.left_out import warnings
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import make_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.spec.document import validate
from testbed.spec.topology import Topology
from testbed.spec.workload import load_workload

WORKLOAD = Path(__file__).parents[2] / "workloads/tiny-gpt-pp4.yaml"


def on_a_line(order: str, algorithm: str = "ring") -> Plan:
    """Replicas of one stage on a chain of datacenters a - b - c - ... in this order, all links alike."""
    names = sorted(order)
    document: dict[str, Any] = {
        "name": "line",
        "datacenters": {name: {"nodes": 1} for name in names},
        "links": [{"between": list(pair), "delay": "10 ms", "rate": "1 Gbit/s"} for pair in pairwise(names)],
    }
    first, *others = (f"{name}/0" for name in order)
    settings = {
        "parallelism.pipeline": "1",
        "parallelism.data": str(len(order)),
        "placement": f"[{first}]",
        "data_parallel.replicas": str([[other] for other in others]).replace("'", ""),
        "data_parallel.parameters": "32 MB",
        "data_parallel.algorithm": algorithm,
        "schedules": "[1f1b]",
        "receives": "early",
    }
    plan = make_plan(validate(Topology, document, "line"), load_workload(WORKLOAD, settings))
    made = make(plan, choose(plan))
    return with_cases(plan, made.choices, made.made)


def seconds(plan: Plan) -> float:
    return iteration_times(plan, plan.cases[0])[0]


@pytest.mark.parametrize("order", ["acbd", "adbecf"])
def test_a_faster_order_is_named_with_its_time(order: str) -> None:
    plan = on_a_line(order)
    (line,) = ring_order.of_rings(plan)
    assert line in warnings(plan)
    named = re.search(r"\[([0-9, ]+)\]: ([0-9.]+) (ms|s) instead of ([0-9.]+) (ms|s) under 1f1b", line)
    assert named is not None, line
    better = "".join(order[int(number)] for number in named[1].split(", "))
    unit = {"s": 1.0, "ms": 1e-3}
    assert seconds(on_a_line(better)) == pytest.approx(float(named[2]) * unit[named[3]], rel=1e-3)
    assert seconds(plan) == pytest.approx(float(named[4]) * unit[named[5]], rel=1e-3)
    assert seconds(on_a_line(better)) < seconds(plan) * 0.99
    assert not ring_order.of_rings(on_a_line(better))


@pytest.mark.parametrize(("order", "algorithm"), [("ab", "ring"), ("abc", "ring"), ("acbd", "hierarchical")])
def test_nothing_is_said_where_no_order_helps(order: str, algorithm: str) -> None:
    assert not ring_order.of_rings(on_a_line(order, algorithm))
