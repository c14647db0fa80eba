"""A case on one choice of routes after another: predicted as if it were put together anew for each, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.files import indented_json
from testbed.model import rerouted, simulate
from testbed.model.lower import Load
from testbed.pipeline.ticks import tick_s
from testbed.plan.plan import Plan
from testbed.planning.prediction import (
    iteration_times,
    numbered,
    one_stands_for_all,
    predict_together,
    ranges_of_case,
    ranges_of_training,
    training_of,
)
from testbed.planning.prediction import loads_of_case as loads_of
from testbed.planning.rerouted_case import ReroutedCase
from testbed.planning.resolve import load_plan, with_cases
from testbed.planning.schedules import choose, make
from testbed.routing import policy_comparison
from testbed.routing.apply import Demands, demands, framing_for, on_routes
from testbed.routing.planner import Reach
from testbed.routing.policies import choose as choose_policy

ROOT = Path(__file__).parents[2]
MESH = """
name: mesh
datacenters: {paris: {nodes: 4}, berlin: {nodes: 4}, madrid: {nodes: 4}, rome: {nodes: 4}}
links:
  - {between: [paris, berlin], delay: 5 ms, rate: 400 Mbit/s}
  - {between: [paris, berlin], name: north, delay: 6 ms, rate: 130 Mbit/s}
  - {between: [paris, madrid], delay: 6 ms, rate: 400 Mbit/s}
  - {between: [berlin, rome], delay: 37 ms, rate: 400 Mbit/s}
  - {between: [madrid, rome], delay: 7 ms, rate: 400 Mbit/s}
  - {between: [paris, rome], delay: 6 ms, rate: 70 Mbit/s}
"""


def planned(topology: Path, *settings: str) -> Plan:
    plan = load_plan(topology, ROOT / "workloads/tiny-gpt-pp4.yaml", settings=["parallelism.data=2", *settings])
    chosen = choose(plan, ["1f1b"])
    plan = with_cases(plan, chosen, make(plan, chosen).made)
    return replace(plan, framing=framing_for(plan, 1))


@pytest.fixture(params=["mesh", "mesh, in parts", "mesh, late", "clos"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    (tmp_path / "mesh.yaml").write_text(MESH)
    settings = {"mesh, in parts": ["streams=2"], "mesh, late": ["receives=late"]}.get(request.param, [])
    if request.param == "clos":
        return planned(ROOT / "examples/my_clos.yaml")
    return planned(tmp_path / "mesh.yaml", *settings)


def choices(wanted: Demands, count: int) -> Sequence[list[int]]:
    """By chance, the same ones every time."""
    random = np.random.default_rng(1)
    return [random.integers(0, wanted.problem.choices).tolist() for _ in range(count)]


def test_every_choice_of_routes_is_predicted_as_by_itself(plan: Plan) -> None:
    case = plan.cases[0]
    wanted, again = demands(plan, case, Reach(elephants_from=1.0)), ReroutedCase(plan, case)
    assert wanted.problem.choices.max() > 1
    for choice in choices(wanted, 12):
        on = on_routes(plan, case, wanted, choice)
        run, expected = again.run(on), predict_together(plan, on)
        found = numbered(plan, on, run.trace())
        for mine, its in ((found.messages, expected.messages), (found.actions, expected.actions)):
            for column in its.dtype.names or ():
                np.testing.assert_array_equal(mine[column], its[column], column)
        assert run.times_s() == iteration_times(plan, on)


def test_times_are_counted_anew_where_links_of_other_speeds_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is tried above is one case of two."""
    (tmp_path / "mesh.yaml").write_text(MESH)
    plan = planned(tmp_path / "mesh.yaml")
    case, lowered = plan.cases[0], []
    plain = simulate.jobs_in_ticks

    def counted(loads: Sequence[Load]) -> Any:
        lowered.append(tick_s(*(load.problem for load in loads)))
        return plain(loads)

    monkeypatch.setattr(rerouted, "jobs_in_ticks", counted)
    wanted, again = demands(plan, case, Reach(elephants_from=1.0)), ReroutedCase(plan, case)
    for choice in choices(wanted, 12):
        again.run(on_routes(plan, case, wanted, choice))
    assert 1 < len(lowered) < 13, "some choices have their own ticks, others the same ones as the one before"


def test_ranges_of_a_case_whose_iterations_are_alike_are_those_of_its_training(plan: Plan) -> None:
    case = plan.cases[0]
    assert one_stands_for_all(plan, case)
    training = training_of(plan, case, loads_of(plan, case))
    assert ranges_of_case(plan, case) == ranges_of_training(plan, case, training)


def test_a_choice_that_several_policies_make_is_predicted_once(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    case, runs = plan.cases[0], list[tuple[Any, ...]]()
    plain = ReroutedCase.run

    def counted(self: ReroutedCase, on: Any) -> Any:
        runs.append(on.routes)
        return plain(self, on)

    monkeypatch.setattr(ReroutedCase, "run", counted)
    wanted = demands(plan, case, Reach(elephants_from=1.0))
    policies = [choose_policy(name) for name in ("shortest", "static", "ecmp")]
    asked = policy_comparison.PolicyComparison(policies, Reach(elephants_from=1.0), seeds=5)
    outcomes = policy_comparison.compare(plan, case, wanted, asked)
    assert len(runs) == len(set(runs))
    assert {outcome.label.split(",")[0] for outcome in outcomes} == {"shortest", "static", "ecmp"}


def test_a_document_is_written_as_json_does_with_an_indent() -> None:
    document = {
        'text, with "quotes"\nand lines': "ü",
        "nothing": [None, {}, [], ()],
        "numbers": (1, -2.5e-9, True, 1e300),
        "nested": [[1, 2], {"a": {"b": [{"c": 1}, []]}}, 3],
        3: {4: [5], 6.5: None},
    }
    assert indented_json(document) == json.dumps(document, indent=2)
    plain: list[Any] = [{}, [], 1, "a", None]
    for empty in plain:
        assert indented_json(empty) == json.dumps(empty, indent=2)
    with pytest.raises(ValueError, match="not JSON compliant"):
        indented_json({"a": [float("nan"), [1]]})
