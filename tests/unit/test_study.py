"""Studies as they are written: values of an axis, and the cells that a grid has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process import run_testbed
from study_files import study_file

from testbed.errors import BadInput
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import overrides_of
from testbed.spec.setting import setting
from testbed.spec.study import StudyAxis, axis_of_text, spread, study_of
from testbed.study import cells

# --- values of an axis -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1..80ms/3", ["1 ms", "40.5 ms", "80 ms"]),
        ("2..5/3", [2, 3.5, 5]),
        ("0 .. 1 s / 2", ["0 s", "1 s"]),
        ("500us..2ms/4", ["0.5 ms", "1 ms", "1.5 ms", "2 ms"]),
        ("1ms..1s/4 log", ["0.001 s", "0.01 s", "0.1 s", "1 s"]),
        ("100..400 Mbit/s/4", ["100 Mbit/s", "200 Mbit/s", "300 Mbit/s", "400 Mbit/s"]),
        ("4..16/4", [4, 8, 12, 16]),
        ("0.5..2/4", [0.5, 1.0, 1.5, 2.0]),
    ],
)
def test_a_range_has_the_values_that_it_says(text: str, values: list[Any]) -> None:
    assert spread(text) == values


@pytest.mark.parametrize(
    "text", ["", "1..", "1..2", "2..1/3", "1..2/1", "0..1 s/3 log", "1 ms..2 Gbit/s/3", "1..2 ms/x"]
)
def test_a_range_that_says_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"1\.\.80 ms/12|unit of ours|both ends"):
        spread(text)


def test_numbers_stand_for_multiples() -> None:
    places = StudyAxis(field=["links.0.delay", "message"], values=[0, 2.5], times="20 ms").places()
    assert [place.settings["topology.links.0.delay"] for place in places] == ["0 s", "0.05 s"]
    assert [place.number for place in places] == [0, 2.5]


def test_a_field_is_the_topologys_where_only_that_has_it() -> None:
    assert [setting(name) for name in ("links.0.delay", "microbatches", "topology.name", "name")] == [
        "topology.links.0.delay",
        "microbatches",
        "topology.name",
        "name",
    ]
    assert overrides_of(["links.0.delay=5 ms", "microbatches=8", "topology.name=x", "name=y"]) == (
        {"microbatches": "8", "name": "y"},
        {"links.0.delay": "5 ms", "name": "x"},
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1 ms", "2 ms", "1000 us"], "1000 us.*expected every value once .1 ms is the same"),
        ([4, "four", 4.0], "expected every value once"),
        (["a", "a"], "expected every value once"),
    ],
)
def test_a_value_twice_is_one_place_in_whatever_unit(values: list[Any], expected: str) -> None:
    document = {"name": "s", "topologies": ["t"], "workloads": ["w"]}
    with pytest.raises(BadInput, match=expected):
        study_of(document | {"over": {"delay": {"field": "links.0.delay", "values": values}}})
    axis = StudyAxis(field="links.0.delay", values=["1 ms", "1", 1e-3, "1 s"])
    assert len(axis.places()) == 4, "a time, a word, and a number are none of each other"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("study", "smoke", "--set", "clock=none"), "expected a field of the study itself"),
        (("compare-axes", "paper-llama2-13b"), "expected a field of the workload: --delay and --rate say"),
    ],
)
def test_a_field_of_a_topology_that_is_not_there_is_refused(words: tuple[str, ...], said: str) -> None:
    for field in ("links.0.delay", "topology.links.0.delay"):
        done = run_testbed(*words, "--set", f"{field}=5 ms")
        assert done.returncode == 2
        assert f"--set: links.0.delay: got '5 ms', {said}" in " ".join(done.stderr.split())


def test_values_of_the_command_line() -> None:
    assert axis_of_text("microbatches=4,8") == ("microbatches", {"field": "microbatches", "values": [4, 8]})
    assert axis_of_text("links.0.delay=1..2ms/2")[1]["values"] == "1..2ms/2"
    assert axis_of_text("microbatches=1_0,٤")[1]["values"] == ["1_0", "٤"], "numbers of Python, and none of YAML"
    assert axis_of_text("pacing.factors=[1, 1],[1,2]")[1]["values"] == [[1, 1], [1, 2]]
    assert axis_of_text("background=[],[{from: a, to: b}]")[1]["values"] == [[], [{"from": "a", "to": "b"}]]
    name, axis = axis_of_text("links.*.delay=1 ms,2 ms")
    assert (name, axis["field"]) == ("links.all.delay", "links.*.delay"), "a name is one of a file, too"


# --- cells -----------------------------------------------------------------------------------------


def test_cells_are_the_whole_grid_in_order(tmp_path: Path) -> None:
    study = study_of(
        study_file(
            tmp_path,
            over={
                "m": {"field": "microbatches", "values": [4, 8]},
                "lat": {"field": "links.0.delay", "values": ["1 ms"]},
            },
            repetitions=2,
        )
    )
    found = cells.cells_of(study, tmp_path / "study.yaml")
    assert [(cell.number, cell.values["m"].number, cell.repetition) for cell in found] == [
        (0, 4, 1),
        (1, 4, 2),
        (2, 8, 1),
        (3, 8, 2),
    ]
    assert len({cell.key for cell in found}) == 4
    assert [cell.unfinished.jobs[0].workload.microbatches for cell in found] == [4, 4, 8, 8]


def test_a_key_is_of_all_that_decides_a_cell(tmp_path: Path) -> None:
    """What does not decide it, such as the grid around it, does not move it."""

    def key(**fields: Any) -> str:
        path = study_file(tmp_path, **fields)
        return cells.cells_of(study_of(path), path)[0].key

    same = key()
    assert key(description="other", over={"m": {"field": "microbatches", "values": [8]}}) == same
    changed = [
        key(set={"microbatches": 9}),
        key(schedules=["1f1b"]),
        key(policies=["shortest"]),
        key(clock="virtual"),
        key(set={"topology.links.0.rate": "2 Gbit/s"}),
    ]
    assert len({same, *changed}) == 6


def test_light_cells_have_smaller_models_and_are_predicted_alike(tmp_path: Path) -> None:
    def cell(**fields: Any) -> tuple[cells.StudyCell, Plan]:
        path = study_file(tmp_path, schedules=["1f1b", "zb-h1"], clock="virtual", **fields)
        (found,) = cells.cells_of(study_of(path), path)
        return found, cells.finished_plan(found, study_of(path))

    (whole, plan), (light, other) = cell(), cell(light=True)
    assert light.key != whole.key
    assert (len(light.said), whole.said) == (1, ())
    assert other.jobs[0].workload.model.parameter_count() < plan.jobs[0].workload.model.parameter_count() / 2
    assert [iteration_times(other, case) for case in other.cases] == [
        iteration_times(plan, case) for case in plan.cases
    ]


def test_light_models_are_refused_where_time_is_not_virtual(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="light"):
        study_of(study_file(tmp_path, light=True, clock="real"))


def test_words_of_an_axis_set_several_fields(tmp_path: Path) -> None:
    over = {
        "net": {"values": {"near": {"links.0.delay": "1 ms"}, "far": {"links.0.delay": "50 ms", "message": "2 MB"}}}
    }
    path = study_file(tmp_path, over=over)
    near, far = cells.cells_of(study_of(path), path)
    delays = [planned(cell.unfinished.network).links[0].delay_s for cell in (near, far)]
    assert delays[1] - delays[0] == pytest.approx(0.049)
    assert far.unfinished.jobs[0].workload.message == 2e6


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"over": {"m": {"field": "microbatchs", "values": [4]}}}, "microbatchs"),
        ({"over": {"m": {"field": "microbatches", "values": [4, 4]}}}, "over.m.values.1"),
        ({"over": {"m": {"values": [4]}}}, "over.m.field"),
        ({"over": {"m": {"field": "message", "values": ["x"], "times": "20 ms"}}}, "over.m.values.0"),
        ({"over": {"m": {"field": "message", "values": [1], "times": "20"}}}, "over.m.times"),
        ({"over": {"label": {"field": "microbatches", "values": [4]}}}, "over.label"),
        ({"over": {"m": {"field": "microbatches", "values": "1..2"}}}, "over.m.values"),
        ({"topologies": ["nowhere.yaml"]}, "nowhere.yaml"),
        ({"claims": ["1f1b < gpip", "order"]}, "claims.0"),
        ({"repetitions": 0}, "repetitions"),
        ({"clock": "wall"}, "clock"),
        ({"policies": ["fastest"]}, "fastest"),
        ({"schedules": ["1f2b"]}, "1f2b"),
    ],
)
def test_a_wrong_study_is_one_error_and_starts_nothing(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    path = study_file(tmp_path, **fields)
    done = run_testbed("study", path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()
