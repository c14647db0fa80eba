"""GeoPipe's steady state: the closed form beside the event model, and dN cut by cut."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from testbed.model.closed_form import Cut, overlap_period
from testbed.pipeline.memory import peak_in_flight
from testbed.pipeline.problem import uniform
from testbed.schedule.registry import generate
from testbed.spec.choice import ScheduleChoice, with_labels

FILE = Path(__file__).parents[2] / "benchmarks/overlap_model.py"


@pytest.fixture(scope="module")
def grid() -> ModuleType:
    spec = importlib.util.spec_from_file_location("overlap_model", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["overlap_model"] = module
    spec.loader.exec_module(module)
    return module


def test_the_overlap_model_is_within_one_per_cent_of_the_event_model(grid: ModuleType) -> None:
    found = [grid.judge(number) for number in range(16)]
    assert max(abs(one.error) for one in found) <= 0.01, found
    assert {one.limit for one in found} == {"compute", "wire", "credit"}


def test_without_extra_forwards_each_microbatch_pays_the_one_way_time_and_with_enough_none_does() -> None:
    tau, one_way = 3.0, 1.5
    assert overlap_period(tau, [Cut(3, 2 * one_way, 0.0)]) == tau + one_way
    assert overlap_period(tau, [Cut(3, 2 * one_way, 0.0, 1)]) == tau
    assert overlap_period(tau, [Cut(3, 12.0, 0.0, 3)]) == (2 * tau + 12.0) / 5
    assert overlap_period(tau, []) == tau


def test_extra_forwards_can_be_given_cut_by_cut() -> None:
    problem = uniform(6, 24, memory=100.0, delay_s=3.0, cuts=(1, 3))
    schedule = generate("geopipe", problem, extra=[3, 1])
    assert list(peak_in_flight(schedule)) == [10, 9, 5, 4, 2, 1]
    assert generate("geopipe", problem, extra=[2, 2]).rows == generate("geopipe", problem, extra=2).rows
    choices = [ScheduleChoice(schedule="geopipe", extra=extra) for extra in ([3, 1], 2)]
    assert [one.label for one in with_labels(choices)] == ["geopipe extra=3+1", "geopipe extra=2"]
