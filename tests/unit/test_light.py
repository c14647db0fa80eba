"""Light models: smaller, with the same messages, so that nothing of a prediction changes; what is kept says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.plan.plan import Adaptation, Clock, Plan
from testbed.planning import file
from testbed.planning.light import lighter
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import load_plan, with_cases, with_clock
from testbed.planning.schedules import choose, make

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples/my_model.py"
REPLICAS = ("parallelism={pipeline: 2, data: 2}", "schedules=[1f1b]")


def plan_of(*settings: str) -> Plan:
    files = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    plan = load_plan(*files, settings=settings)
    made = make(plan, choose(plan))
    return with_clock(with_cases(plan, made.choices, made.made), Clock("virtual"))


@pytest.mark.parametrize(
    "settings",
    [
        ("schedules=[1f1b, zb-h1]",),
        ("schedules=[zb-h1]", "message=70 kB", "model={layers: 5, d_model: 96, heads: 3, sequence: 40, d_ff: 64}"),
        ("schedules=[1f1b]", "parallelism={pipeline: 2, tensor: 2}", "streams=2"),
        (*REPLICAS, "data_parallel={parameters: 3 MB}"),
        REPLICAS,
        ("parallelism={pipeline: 2, data: 3}", "schedules=[zb-v, interleaved-1f1b]", "memory=6"),
        ("parallelism={pipeline: 2, data: 2}", "schedules=[1f1b]", "data_parallel={sharding: none}", "model.layers=5"),
        ("schedules=[1f1b]", "model={kind: linear, layers: 5, d_model: 48, sequence: 24, dtype: float64}"),
    ],
)
def test_a_smaller_model_has_the_same_messages_and_the_same_prediction(settings: tuple[str, ...]) -> None:
    plan = plan_of(*settings)
    light, (said,) = lighter(plan)
    (before,), (after,) = plan.jobs, light.jobs
    assert after.workload.model.parameter_count() < before.workload.model.parameter_count() / 2
    assert after.workload.tensor_bytes() < before.workload.tensor_bytes()
    assert after.workload.message_bytes() == before.workload.message_bytes()
    assert [iteration_times(light, case) for case in light.cases] == [
        iteration_times(plan, case) for case in plan.cases
    ]
    assert f"light model: {after.workload.model.kind}, " in said
    assert after.workload.model.kind == ("gpt" if after.workload.parallelism.tensor > 1 else "linear")
    assert file.from_json(file.to_json(light), "plan") == light


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        (("schedules=[1f1b, zb-h1]",), 4),
        (("schedules=[1f1b, zb-v]", "memory=6"), 8),
        (("schedules=[1f1b]", "parallelism.pipeline=3", "model.layers=7"), 7),
        (("schedules=[1f1b, zb-v]", "memory=6", "model.layers=12"), 12),
        (("schedules=[1f1b]", "parallelism={pipeline: 2, tensor: 2}"), 8),
    ],
    ids=["one each", "two on a rank", "shared unevenly", "by one of two", "tensor ranks"],
)
def test_a_layer_is_left_for_every_stage_where_all_have_as_many(settings: tuple[str, ...], layers: int) -> None:
    plan = plan_of(*settings)
    light, (said,) = lighter(plan)
    assert light.jobs[0].workload.model.layers == layers
    assert f"{layers} layers" in said
    assert len(said) <= 80
    assert [iteration_times(light, case) for case in light.cases] == [
        iteration_times(plan, case) for case in plan.cases
    ]


@pytest.mark.parametrize(("names", "layers"), [(("1f1b",), 4), (("1f1b", "zb-v"), 8), (("best",), 8), ((), 8)])
def test_of_a_plan_without_cases_its_schedules_tell_the_stages(names: tuple[str, ...], layers: int) -> None:
    plan = replace(plan_of("schedules=[1f1b]", "memory=8"), cases=())
    light, _ = lighter(plan, [choose(plan, names)] if names else ())
    assert light.jobs[0].workload.model.layers == layers


@pytest.mark.parametrize(("stages", "layers"), [(False, 4), (True, 8)])
def test_a_job_whose_stages_may_move_keeps_its_layers(stages: bool, layers: int) -> None:
    plan = plan_of("schedules=[1f1b, zb-h1]")
    choices = tuple(case.jobs[0].choice for case in plan.cases)
    adapting = replace(plan, adaptation=Adaptation("ski-rental", choices, 0.0, stages=stages))
    light, _ = lighter(adapting)
    assert light.jobs[0].workload.model.layers == layers


def test_a_message_that_nobody_gave_keeps_the_size_of_the_model_asked_for() -> None:
    plan = plan_of("schedules=[1f1b]", "message=null")
    light, _ = lighter(plan)
    assert light.jobs[0].workload.message == plan.jobs[0].workload.tensor_bytes()
    assert iteration_times(light, light.cases[0]) == iteration_times(plan, plan.cases[0])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("parallelism={pipeline: 2, data: 2}", "schedules=[1f1b, zb-v]", "memory=6"), "what its replicas exchange"),
        (("schedules=[1f1b]", "model={kind: linear, layers: 4, d_model: 8, sequence: 4}"), "as small"),
        (
            (
                "schedules=[1f1b]",
                "parallelism={pipeline: 2, tensor: 2}",
                "model={layers: 4, d_model: 8, heads: 2, sequence: 4}",
            ),
            "as small",
        ),
        (
            ("schedules=[1f1b]", f"model={{kind: '{MODEL}:Mlp', layers: 8, width: 64, sequence: 32}}"),
            "nothing is known",
        ),
    ],
)
def test_a_model_that_stays_says_why(settings: tuple[str, ...], reason: str) -> None:
    plan = plan_of(*settings)
    light, (said,) = lighter(plan)
    assert light == plan
    assert reason in said


def test_a_real_clock_is_refused() -> None:
    done = run_testbed("run", "two-dc-longhaul", "tiny-gpt-pp4", "--light")
    assert done.returncode == 2
    assert "--light" in done.stderr
