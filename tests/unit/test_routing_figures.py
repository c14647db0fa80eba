"""The benchmarks of routing in a lab: that their jobs send what they are there for, and how their figures are read."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from testbed.judge.network_metric import Filled, Seen
from testbed.plan.plan import TrafficKind
from testbed.planning import file
from testbed.planning.resolve import require_trainable
from testbed.routing.apply import demands

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def lab() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))  # they import each other, as scripts of one directory do
    try:
        return importlib.import_module("routing_lab")
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_rings_and_pipelines_both_cross_leaves(lab: ModuleType) -> None:
    """Of the first job data parallelism alone, of the second one activations and gradients alone."""
    plan = lab.planned(lab.topology(2), lab.jobs())
    require_trainable(plan)
    wanted = demands(plan, plan.cases[0], lab.REACH)
    leaves = [(one.source.partition("/")[0], one.target.partition("/")[0], one) for one in wanted.elephants]
    crossing = [[one for a, b, one in leaves if a != b and one.job == job] for job in (0, 1)]
    assert {one.kinds for one in crossing[0]} == {(TrafficKind.DATA_PARALLEL,)}
    assert {one.kinds for one in crossing[1]} == {(TrafficKind.ACTIVATION,), (TrafficKind.GRADIENT,)}
    assert [len(one) for one in crossing] == [8, 12]
    sent, asked = crossing[0][0].wire_bytes, 1.5 * lab.Sizes().ring
    assert sent == pytest.approx(asked, rel=0.01)


def test_every_case_of_mixed_traffic_is_a_plan(lab: ModuleType) -> None:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        mixed = importlib.import_module("routing_time")
    finally:
        sys.path.remove(str(BENCHMARKS))
    assert len(mixed.cases(["clos", "mesh"])) == 12
    network = mixed.routing_joint.topology(mixed.routing_joint.Point("unequal", 0.5, 1.0))
    plan = lab.planned(network, [mixed.shifted_job(0.25)])
    file.check(plan, "plan.json")
    require_trainable(plan)
    sent = {one.kinds: one.wire_bytes for one in demands(plan, plan.cases[0], lab.REACH).elephants}
    assert sent[TrafficKind.DATA_PARALLEL,] == pytest.approx(0.25 * sent[TrafficKind.ACTIVATION,], rel=0.02)


def test_a_ranking_of_ties_may_be_either_way_round(lab: ModuleType) -> None:
    assert lab.as_predicted([(1.0, 1.1), (2.0, 2.1)])
    assert not lab.as_predicted([(1.0, 2.1), (2.0, 1.1)])
    assert lab.as_predicted([(1.0, 1.00001), (1.0 + lab.TIE / 2, 1.0)])


def test_the_spread_of_a_control_is_the_worst_jobs(lab: ModuleType) -> None:
    nothing: list[float | None] = [None, None]
    filled = Filled(nothing, 1, nothing, 1.0)
    every = [
        lab.Row("x", filled, Seen(nothing, 1, 1.0, [1.0, second], nothing, nothing, nothing)) for second in (1.0, 1.1)
    ]
    assert lab.spread(every) == pytest.approx(0.1)
    assert np.isclose(lab.spread(every[:1]), 0.0)
