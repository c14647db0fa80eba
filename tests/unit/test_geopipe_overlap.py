"""GeoPipe's steady state: the closed form beside the event model, and dN cut by cut."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from oracles.closed_form import Cut, overlap_period

from testbed.model.simulate import makespan
from testbed.pipeline.memory import peak_in_flight
from testbed.pipeline.problem import uniform
from testbed.schedule.geopipe import unlimited
from testbed.schedule.registry import generate
from testbed.spec.choice import ScheduleChoice, with_labels

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def grid() -> ModuleType:
    return loaded("overlap_model")


@pytest.fixture(scope="module")
def choice() -> ModuleType:
    return loaded("geopipe_choice")


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


def test_where_a_link_is_full_more_extra_forwards_than_that_link_lets_pass_are_not_made() -> None:
    """S / (B tau) = 3.8 at two cuts: by tau dN would be 8 at each, which only delays gradients."""
    problem = uniform(8, 48, memory=1000.0, delay_s=0.3, wire_s=11.4, cuts=(2, 5))
    assert unlimited(problem) == {2: 3, 5: 3}
    times = {extra: makespan(problem, generate("geopipe", problem, extra=extra)) for extra in (0, 1, 8)}
    made = generate("geopipe", problem)
    assert makespan(problem, made) <= times[1] < min(times[0], times[8])
    assert peak_in_flight(made)[0] <= 8 + 2


@pytest.mark.parametrize("number", [38, *range(12)])
def test_nothing_that_memory_allows_is_faster_than_what_is_chosen(choice: ModuleType, number: int) -> None:
    """In cell 38 an extra forward must be taken from one cut for another one."""
    assert choice.behind(choice.cell(number)) <= choice.TIE


def test_the_default_is_never_slower_than_1f1b(choice: ModuleType) -> None:
    assert max(choice.behind_plain(choice.cell(number)) for number in range(100, 150)) <= choice.TIE
