"""Studies that only predict: grids, what lies there already, claims, tables; measured ones are in tests/vm."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from in_process import run_testbed
from processes import wait_until

from testbed.cli.study import exit_code
from testbed.errors import BadInput, ExitCode
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import overrides_of
from testbed.spec.setting import setting
from testbed.spec.study import StudyAxis, StudySpec, axis_of_text, spread, study_of
from testbed.study import cell_runs, cells, outcomes
from testbed.study.axis_plots import draw_axes
from testbed.study.cell_locks import CellLocks, cells_directory
from testbed.study.claim_text import parse
from testbed.study.claims import ClaimVerdict, StudyTables
from testbed.study.outcomes import CellOutcome
from testbed.study.study_run import Finished

ROOT = Path(__file__).parents[2]
FILES = [str(ROOT / "topologies/two-dc-longhaul.yaml"), str(ROOT / "workloads/tiny-gpt-pp4.yaml")]


def study_file(directory: Path, **fields: Any) -> Path:
    document = {"name": "mine", "topologies": FILES[:1], "workloads": FILES[1:], "clock": "none"} | fields
    path = directory / "study.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


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


# --- a whole study ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"set": {"microbatches": 16}}, r"set\.microbatches: got 16, expected no field of an axis \(a\)"),
        (
            {"b": {"field": "microbatches", "values": [12, 16]}},
            r"over\.b: got .microbatches., .* that no other axis sets",
        ),
        (
            {"b": {"values": {"x": {"microbatches": 2}, "y": {}}}},
            r"over\.b: got .microbatches., .* that no other axis sets",
        ),
    ],
    ids=["set", "axes", "words"],
)
def test_a_field_that_is_said_twice_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    """What was said last was taken, and the table had cells with values that they were not made with."""
    over = {"a": {"field": "microbatches", "values": [4, 8]}} | {
        name: fields[name] for name in ("b",) if name in fields
    }
    with pytest.raises(BadInput, match=said):
        study_of(study_file(tmp_path, over=over, set=fields.get("set", {})))


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    """Both were one row of the table, and claims were judged by the median of the two."""
    topology = yaml.safe_load(Path(FILES[0]).read_text())
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(topology | {"description": "another one"}))
    study = study_file(tmp_path, topologies=[FILES[0], "other.yaml"])
    with pytest.raises(
        BadInput, match=r"topologies: got .other\.yaml., expected a name .* not .two-dc-longhaul. as in "
    ):
        cells.cells_of(study_of(study), study)
    study = study_file(tmp_path, workloads=[FILES[1], FILES[1]])
    with pytest.raises(BadInput, match=r"workloads\.1: got .*, expected every one once"):
        study_of(study)


@pytest.mark.parametrize(
    ("field", "values", "own"), [("schedules", [["1f1b"], ["gpipe"]], ["zb-h1"]), ("iterations", [2, 4], 3)]
)
def test_what_a_study_sets_itself_is_no_axis(tmp_path: Path, field: str, values: list[Any], own: Any) -> None:
    """Cells were called by schedules that were not theirs."""
    over = {"a": {"field": field, "values": values}}
    with pytest.raises(BadInput, match=rf"over\.a: got .{field}., expected a field that the study does not set itself"):
        study_of(study_file(tmp_path, over=over, **{field: own}))
    study_of(study_file(tmp_path, over=over))


def test_a_field_of_every_link_undoes_that_of_one(tmp_path: Path) -> None:
    """Cells of a table were called by delays that no link of theirs had."""
    one = {"field": "links.0.delay", "values": ["1 ms", "2 ms"]}
    every = {"field": "links.*.delay", "values": ["3 ms", "4 ms"]}
    with pytest.raises(BadInput, match=r"over\.b: got .topology\.links\.\*\.delay., .* no other axis sets \(a does\)"):
        study_of(study_file(tmp_path, over={"a": one, "b": every}, set={}))
    with pytest.raises(BadInput, match=r"set\.links\.0\.delay: got .9 ms., expected no field of an axis \(b\)"):
        study_of(study_file(tmp_path, over={"b": every}, set={"links.0.delay": "9 ms"}))
    slots = {"a": {"field": "pacing.F", "values": ["1 ms"]}, "b": {"field": "pacing", "values": [{"F": "3 ms"}]}}
    with pytest.raises(BadInput, match=r"over\.b: got .pacing., .* no other axis sets \(a does\)"):
        study_of(study_file(tmp_path, over=slots, set={}))
    # one link may differ from what all others have
    study_of(study_file(tmp_path, over={"b": every, "a": one}, set={"links.*.rate": "1 Gbit/s"}))
    study_of(study_file(tmp_path, over={"a": one}, set={"links.*.delay": "9 ms"}))


def test_a_word_may_set_what_is_the_same_elsewhere(tmp_path: Path) -> None:
    over = {"a": {"values": {"few": {"microbatches": 4}, "usual": {}}}}
    assert study_of(study_file(tmp_path, over=over, set={"microbatches": 16})).set == {"microbatches": 16}


def test_a_study_predicts_writes_draws_and_judges(tmp_path: Path) -> None:
    path = study_file(
        tmp_path,
        over={
            "delay": {"field": "links.0.delay", "values": "1..80 ms/4"},
            "m": {"field": "microbatches", "values": [4, 8]},
        },
        claims=[
            "order as the model's",
            "crosspipe-greedy < 1f1b",
            "1f1b < gpipe at m=8",
            "crossing of gpipe and crosspipe-greedy between 30 ms and 60 ms at m=8",
        ],
    )
    out = tmp_path / "out"
    done = run_testbed("study", path, "--out", out, "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1, "a claim fails"
    assert [claim["verdict"] for claim in document["claims"]] == ["undecided", "holds", "fails", "holds"]
    assert document["taken_now"] == len(document["cells"]) == 8
    table = pd.read_parquet(out / "study.parquet")
    assert len(table) == 8 * 4
    assert list(pd.read_csv(out / "study.csv").columns) == list(table.columns)
    assert sorted(table["delay_value"].unique())[-1] == pytest.approx(0.080)
    assert {file.name for file in out.glob("plot-*.svg")} == {"plot-delay.svg", "plot-m.svg"}

    single = run_testbed("predict", *FILES, "--set", "topology.links.0.delay=80 ms", "--json")
    predicted = {row["label"]: row["predicted_s"] for row in json.loads(single.stdout)["schedules"]}
    cell = table[(table["delay"] == "80 ms") & (table["m"] == "8")]
    assert dict(zip(cell["label"], cell["predicted_s"], strict=True)) == predicted


def test_what_lies_there_is_not_taken_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_testbed("sweep", *FILES, "--over", "microbatches=4,8", "--clock", "none", "--out", out)
    again = run_testbed("sweep", *FILES, "--over", "microbatches=4,8,12", "--clock", "none", "--out", out, "--json")
    document = json.loads(again.stdout)
    assert document["taken_now"] == 1
    assert len(document["cells"]) == 3


def test_cells_that_ask_for_more_than_the_model_has_are_counted(tmp_path: Path) -> None:
    words = ["sweep", *FILES, "--clock", "none", "--schedule", "1f1b", "--out", str(tmp_path / "out")]
    done = run_testbed(*words, "--over", "transport=otn-lossless,tcp-bbr,tcp-cubic", "--over", "microbatches=4,8")
    assert done.returncode == 0, done.stderr
    assert "4 cells ask for what predictions leave out" in done.stdout
    plain = run_testbed(*words, "--over", "microbatches=4,8")
    assert "leave out" not in plain.stdout


def test_a_cell_that_does_not_fit_is_an_outcome(tmp_path: Path) -> None:
    done = run_testbed(
        "sweep",
        *FILES,
        "--over",
        "memory=1,4",
        "--schedule",
        "zb-h1",
        "--clock",
        "none",
        "--out",
        tmp_path / "out",
        "--json",
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert "does not fit" in document["cells"][0]["failed"]
    assert document["cells"][1]["schedules"][0]["label"] == "zb-h1"


def processes(*commands: tuple[str | Path, ...]) -> list[subprocess.Popen[str]]:
    """Commands of ours, started at once."""
    return [
        subprocess.Popen(
            [sys.executable, "-m", "testbed", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in commands
    ]


def test_an_array_of_jobs_shares_a_directory(tmp_path: Path) -> None:
    """As a batch system starts them: each a cell, all at once; the whole study then has nothing left to do."""
    path, out = study_file(tmp_path, over={"m": {"field": "microbatches", "values": [4, 8]}}), tmp_path / "out"
    for each in processes(*(("study", path, "--cell", str(cell), "--out", out) for cell in (0, 1, 1))):
        said, errors = each.communicate(timeout=100)
        assert each.returncode == 0, errors
        assert "tables are written of the whole study only" in said
    assert not list(out.glob("study.*"))
    document = json.loads(run_testbed("study", path, "--out", out, "--json").stdout)
    assert document["taken_now"] == 0
    assert len(pd.read_parquet(out / "study.parquet")) == 8


def test_a_cell_of_a_study_leaves_its_tables_alone(tmp_path: Path) -> None:
    path, out = study_file(tmp_path, over={"m": {"field": "microbatches", "values": [4, 8]}}), tmp_path / "out"
    run_testbed("study", path, "--out", out)
    before = {file: file.read_bytes() for file in out.iterdir() if file.is_file()}
    document = json.loads(run_testbed("study", path, "--cell", "1", "--out", out, "--json").stdout)
    assert document["tables"] == document["pictures"] == []
    assert {file: file.read_bytes() for file in before} == before
    assert len(before) == 3


def test_a_cell_that_another_command_is_at_work_on_comes_last(tmp_path: Path) -> None:
    path, out = study_file(tmp_path, over={"m": {"field": "microbatches", "values": [4, 8]}}), tmp_path / "out"
    keys = [cell.key for cell in cells.cells_of(study_of(path), path)]
    base = cells_directory(out)
    with CellLocks(out) as elsewhere:
        assert elsewhere.take(keys[0])
        (waiting,) = processes(("study", path, "--out", out, "--json"))
        wait_until(lambda: outcomes.is_predicted(base / keys[1]), "the other cell was not predicted")
        assert waiting.poll() is None
        assert not outcomes.is_predicted(base / keys[0])
    said, errors = waiting.communicate(timeout=100)
    assert waiting.returncode == 0, errors
    assert json.loads(said)["taken_now"] == 2, "nobody had done it when it was let go"


def test_what_another_command_did_meanwhile_is_not_done_again(tmp_path: Path) -> None:
    path, out = study_file(tmp_path), tmp_path / "out"
    (key,) = (cell.key for cell in cells.cells_of(study_of(path), path))
    assert run_testbed("study", path, "--out", tmp_path / "other").returncode == 0
    with CellLocks(out) as elsewhere:
        assert cells_directory(out)
        assert elsewhere.take(key)
        (waiting,) = processes(("study", path, "--out", out, "--json"))
        time.sleep(1.0)
        shutil.copytree(tmp_path / "other/cells" / key, out / "cells" / key)
    assert json.loads(waiting.communicate(timeout=100)[0])["taken_now"] == 0


def test_two_commands_do_not_have_one_cell(tmp_path: Path) -> None:
    cells_directory(tmp_path)
    with CellLocks(tmp_path) as one, CellLocks(tmp_path) as other:
        assert one.take("key")
        assert not other.take("key")
        one.release("key")
        assert other.take("key")


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_what_a_dead_boot_had_is_tried_once_more_alone(tmp_path: Path, names: list[str]) -> None:
    heard = list[tuple[str, str]]()
    batches = cell_runs.Batches(tmp_path, iter([names]), lambda name, why: heard.append((name, why)))
    assert batches.following() == names
    batches.ended(names, "it died")
    again = [batches.following() or () for _ in names]
    assert sorted(map(list, again)) == [[name] for name in names]
    assert batches.following() is None
    assert heard == []
    for one in again:
        batches.ended(one, "it died again")
    assert batches.following() is None
    assert sorted(heard) == [(name, "it died again") for name in names]


def test_what_the_machine_lacks_is_not_tried_again(tmp_path: Path) -> None:
    heard = list[tuple[str, str]]()
    batches = cell_runs.Batches(tmp_path, iter([["a", "b"]]), lambda name, why: heard.append((name, why)))
    why = cell_runs.why_ended(ExitCode.MACHINE_LACKS, "warning: slow\nerror: no netem; add it with: modprobe sch_netem")
    batches.ended(batches.following() or (), why, final=True)
    assert batches.following() is None
    said = "cannot here: no netem; add it with: modprobe sch_netem"
    assert heard == [("a", said), ("b", said)]
    assert cell_runs.why_ended(ExitCode.RUN_FAILED, "error: it died") == "it ended with exit code 4\nerror: it died"
    assert cell_runs.why_ended(None, "") == "it took longer than its limit"


def one_of_two_cannot_be_measured(directory: Path) -> tuple[StudySpec, list[cells.StudyCell], list[CellOutcome]]:
    path = study_file(directory, over={"m": {"field": "microbatches", "values": [4, 8]}}, schedules=["1f1b"])
    spec = study_of(path, {"clock": "virtual"})
    both = cells.cells_of(spec, path)
    row = {"label": "1f1b", "schedule": "1f1b", "predicted_s": 0.8, "measured_s": 0.8, "error": 0.0, "trusted": True}
    return (
        spec,
        both,
        [
            CellOutcome(both[0], (), {}, "cannot here: no bbr", None),
            CellOutcome(both[1], (row,), {}, "", True),
        ],
    )


def test_a_cell_that_cannot_be_measured_here_is_a_row_with_the_reason(tmp_path: Path) -> None:
    spec, _, found = one_of_two_cannot_be_measured(tmp_path)
    table = outcomes.with_missing(outcomes.table_of(found), found)
    assert list(table["outcome"]) == ["cannot here", "measured"]
    assert list(table["m"]) == ["4", "8"]
    assert table["reasons"][0] == "cannot here: no bbr"
    assert math.isnan(table["measured_s"][0])
    assert outcomes.table_of(found)["cell"].tolist() == [1]  # what claims and pictures are made of
    tables = StudyTables(outcomes.table_of(found), outcomes.cell_table(found), spec.over, measured=True)
    verdicts = {
        text: parse(text, spec.over, ["1f1b"]).judged(tables)
        for text in ("1f1b < 1 s", "1f1b < 1 s at m=8", "1f1b < 1 ms")
    }
    assert [each.verdict for each in verdicts.values()] == ["undecided", "holds", "fails"]
    assert "no bbr" in verdicts["1f1b < 1 s"].why


def test_exit_codes_of_what_cannot_be_measured_here(tmp_path: Path) -> None:
    spec, both, found = one_of_two_cannot_be_measured(tmp_path)
    failed = CellOutcome(both[1], (), {}, "it died", None)
    unfit = CellOutcome(both[1], (), {}, "does not fit: too little memory", None)

    def code(*of: CellOutcome) -> ExitCode:
        return exit_code(spec, Finished(of, [], 0))

    assert code(*found) == ExitCode.UNTRUSTED
    assert code(found[1]) == ExitCode.OK
    assert code(found[0]) == code(found[0], unfit) == ExitCode.MACHINE_LACKS
    assert code(found[0], failed) == ExitCode.RUN_FAILED


def test_single_cells_and_their_list(tmp_path: Path) -> None:
    path = study_file(tmp_path, over={"m": {"field": "microbatches", "values": [4, 8, 12]}})
    listed = run_testbed("study", path, "--list", "--out", tmp_path / "out").stdout.splitlines()
    assert len(listed) == 3
    assert f"testbed study {path} --cell 2" in listed[2]
    document = json.loads(run_testbed("study", path, "--cell", "1-2", "--out", tmp_path / "out", "--json").stdout)
    assert [cell["number"] for cell in document["cells"]] == [1, 2]
    assert run_testbed("study", path, "--cell", "3", "--out", tmp_path / "out").returncode == 2


def test_jobs_are_shown_and_judged_one_by_one(tmp_path: Path) -> None:
    """Of two jobs of one cell neither time is a median of both."""
    other = yaml.safe_load(Path(FILES[1]).read_text()) | {"name": "other", "microbatches": 4}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
    path = study_file(
        tmp_path,
        workloads=[[FILES[1], "other.yaml"]],
        schedules=["1f1b", "zb-h1"],
        over={"delay": {"field": "links.0.delay", "values": ["0 s", "20 ms"]}},
        claims=["1f1b at job=other <= 0.7 * 1f1b at job=tiny-gpt-pp4", "zb-h1 < 1f1b", "1f1b < 0.6 s at job=other"],
    )
    out = tmp_path / "out"
    done = run_testbed("study", path, "--out", out)
    assert done.returncode == 0, done.stdout
    table = pd.read_parquet(out / "study.parquet").set_index(["delay", "job", "label"])["predicted_s"]
    for job in ("tiny-gpt-pp4", "other"):
        (row,) = [line for line in done.stdout.splitlines() if f"{job}, 20 ms" in line]
        assert f"{1e3 * table['20 ms', job, '1f1b']:.1f} ms" in row or f"{table['20 ms', job, '1f1b']:.3f} s" in row
    assert (out / "plot-delay.svg").read_text().count("job=") == 2


def test_a_picture_names_what_only_a_later_panel_has_and_takes_no_word_for_mathematics(tmp_path: Path) -> None:
    at = [("4", 1.0, "1f1b"), ("4", 2.0, "1f1b"), ("8", 1.0, "1f1b"), ("8", 2.0, "1f1b"), ("8", 2.0, "own$2$.py")]
    unknown = ("measured_s", "measured_iqr_s", "published_s", "predicted_low_s", "predicted_high_s")
    columns = {"topology": "two", "workload": "job", "job": "", **dict.fromkeys(unknown, math.nan)}
    rows = [
        {**columns, "m": m, "m_value": float(m), "x": str(x), "x_value": x, "label": label, "predicted_s": x}
        for m, x, label in at
    ]
    axes = {name: StudyAxis(field=name, values=[1, 2]) for name in ("m", "x")}
    draw_axes(axes, pd.DataFrame(rows), tmp_path, "from $a$ to b$")
    text = (tmp_path / "plot-x.svg").read_text()
    for words in ("from $a$ to b$", "own$2$.py, predicted", "m=8"):
        assert f">{words}</text>" in text


def test_a_plan_that_a_grid_has_twice_is_done_once_and_shown_twice(tmp_path: Path) -> None:
    over = {"same": {"values": {"x": {}, "y": {}}}, "one": {"field": "microbatches", "values": [4]}}
    done = run_testbed("study", study_file(tmp_path, over=over, schedules=["1f1b"]), "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "2 of 2 cells predicted (1 of them the same plan as another)" in done.stdout
    assert len(pd.read_parquet(tmp_path / "out/study.parquet")) == 2
    assert [file.name for file in (tmp_path / "out").glob("plot-*")] == ["plot-same.svg"]


# --- what a paper has published --------------------------------------------------------------------


def with_published(directory: Path, text: str, **fields: Any) -> Path:
    (directory / "times.csv").write_text(text)
    published = {"file": "times.csv", "source": "a paper", "column": "ms", "unit": "ms"} | fields
    over = {
        "m": {"field": "microbatches", "values": [4, 8]},
        "lat": {"field": "links.0.delay", "values": [0, 0.5], "times": "20 ms"},
    }
    claims = ["error to published <= 5 %", "order as published"]
    return study_file(directory, published=published, over=over, schedules=["1f1b", "zb-h1"], claims=claims)


def test_published_times_stand_beside_ours(tmp_path: Path) -> None:
    """At the places that the file names; an axis without a column is the same at all its values."""
    path = with_published(tmp_path, "schedule,m,table,ms\n1f1b,4,5,100.0\n1f1b,8,5,80\n", per="microbatch")
    out = tmp_path / "out"
    done = run_testbed("study", path, "--out", out)
    assert done.returncode == 1, "nothing of ours is as near"
    heading = done.stdout.splitlines()[2:4]
    assert [line.split().count(word) for line, word in zip(heading, ("1f1b", "published"), strict=True)] == [2, 1]
    table = pd.read_parquet(out / "study.parquet")
    known = table[table["published_s"].notna()]
    assert set(known["label"]) == {"1f1b"}
    assert list(known["published_s"]) == pytest.approx([0.4, 0.4, 0.64, 0.64])
    assert list(known["error_to_published"]) == pytest.approx(list(known["predicted_s"] / known["published_s"] - 1))
    assert "1f1b, published" in (out / "plot-m.svg").read_text()


def test_only_cells_of_which_something_is_published(tmp_path: Path) -> None:
    path = with_published(tmp_path, "schedule,lat,m,ms\n1f1b,0.50,8,700\nzb-h1,0,4,300\n", only=True)
    found = cells.cells_of(study_of(path), path)
    assert [(cell.values["m"].number, cell.values["lat"].number) for cell in found] == [(4, 0), (8, 0.5)]
    assert [dict(cell.published) for cell in found] == [pytest.approx({"zb-h1": 0.3}), pytest.approx({"1f1b": 0.7})]
    assert [cell.number for cell in found] == [0, 1]


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        ("schedule,m,s\n1f1b,4,5\n", {}, "a column ms"),
        ("m,ms\n4,5\n", {}, "a column schedule"),
        ("schedule,m,ms\n1f1b,4,soon\n", {}, "line 2, ms"),
        ("schedule,m,ms\n1f1b,4,-5\n", {}, "a time above 0"),
        ("schedule,m,ms\n1f1b,4,5\n1f1b,4,6\n", {}, "line 3"),
        ("schedule,m,ms\n1f1b,5,5\n", {}, "places of this grid"),
        ("schedule,m,ms\n1f1b,4,5\n", {"unit": "Mbit/s"}, "a unit of time"),
        ("schedule,m,ms\n1f1b,4,5\n", {"file": "none.csv"}, "none.csv"),
    ],
)
def test_published_times_that_cannot_be_read_are_one_error(
    tmp_path: Path, text: str, fields: dict[str, Any], said: str
) -> None:
    done = run_testbed("study", with_published(tmp_path, text, **fields), "--out", tmp_path / "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_every_published_cell_of_crosspipe_is_in_the_study_of_its_tables() -> None:
    path = ROOT / "studies/crosspipe-tables.yaml"
    found = cells.cells_of(study_of(path, {"over.receives.values": "[early]"}), path)
    known = pd.read_csv(ROOT / "studies/data/crosspipe_tables.csv")
    assert sum(len(cell.published) for cell in found) == len(known) == 140
    (cell,) = (cell for cell in found if [*(v.shown for v in cell.values.values())][:4] == ["4", "3", "2", "2"])
    assert cell.published["UD"] == pytest.approx(0.178 * 32)


# --- claims ----------------------------------------------------------------------------------------

AXES = {
    "lat": StudyAxis(field="links.0.delay", values=["10 ms", "20 ms", "30 ms"]),
    "net": StudyAxis(values={"near": {"message": "1 MB"}, "far": {"message": "2 MB"}}),
}


PUBLISHED_S = {"a": 1.0, "b": 1.4}


def evidence(
    times: dict[tuple[str, str], dict[str, float]], *, failed: str = "", untrusted: Collection[str] = ()
) -> StudyTables:
    """What was measured at (lat, net), by label; those of the `untrusted` labels cannot be trusted."""
    rows, of_cells = [], []
    for number, ((lat, net), taken) in enumerate(times.items()):
        place = {"cell": number, "topology": "t", "workload": "w", "lat": lat, "lat_value": float(lat.split()[0]) / 1e3}
        place |= {"net": net, "net_value": float("nan"), "job": None}
        of_cells.append(place | {"failed": "" if number or not failed else failed, "order_as_predicted": number != 1})
        for label, seconds in taken.items():
            row = {
                "label": label,
                "measured_s": seconds,
                "predicted_s": seconds / 1.0002,
                "trusted": label not in untrusted,
            }
            published_s = PUBLISHED_S.get(label, float("nan"))
            row |= {"published_s": published_s, "error_to_published": seconds / published_s - 1}
            rows.append(
                place | row | {"predicted_low_s": float("nan"), "predicted_high_s": float("nan"), "covered": True}
            )
    return StudyTables(pd.DataFrame(rows), pd.DataFrame(of_cells), AXES, measured=True)


GRID = evidence(
    {
        ("10 ms", "near"): {"a": 1.0, "b": 1.5},
        ("20 ms", "near"): {"a": 1.4, "b": 1.5},
        ("30 ms", "near"): {"a": 1.8, "b": 1.6},
        ("10 ms", "far"): {"a": 1.1, "b": 1.5},
    }
)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("a <= 0.95 * b at lat=20 ms", "holds"),
        ("a ≤ 0.93 × b at lat=20 ms", "fails"),
        ("a < b", "fails"),
        ("a < b at lat=10ms", "holds"),
        ("a < b at lat=0.01 s, net=far", "holds"),
        ("b >= 1.5 s at net=near", "holds"),
        ("b > 1.5 s at net=near", "fails"),
        ("a is fastest at lat=20 ms", "holds"),
        ("b is fastest at lat=30 ms", "holds"),
        ("b is fastest at lat=20 ms", "fails"),
        ("error <= 0.05 %", "holds"),
        ("error < 0.01 %", "fails"),
        ("order as the model's at lat=10 ms", "holds"),
        ("order as predicted", "fails"),
        ("crossing of a and b between 20 ms and 30 ms at net=near", "holds"),
        ("crossing of b and a between 0.022 s and 0.025 s along lat at net=near", "holds"),
        ("crossing of a and b between 20 ms and 23 ms at net=near", "fails"),
        ("crossing of a and b between 20 ms and 30 ms at net=far", "fails"),
        ("a at lat=10 ms <= 0.8 * a at lat=20 ms", "holds"),
        ("a at lat=10 ms <= 0.7 x a at lat=20 ms", "fails"),
        ("a at lat=30 ms, net=near > 1.6 * a at net=far, lat=10 ms", "holds"),
        ("a at lat=10 ms < b at lat=20 ms, net=near", "holds"),
        ("b at lat=10 ms, net=near < b at lat=20 ms", "fails"),
        ("a at net=far <= 1.1 * a at net=near", "holds"),
        ("a at lat=20 ms < 1.45 s", "holds"),
        ("a at lat=30 ms <= a at lat=20 ms, net=far", "undecided"),
        ("error to published <= 80 %", "holds"),
        ("error of a to published <= 10 %", "fails"),
        ("error of a to published <= 11 % at lat=10 ms", "holds"),
        ("error of b <= 0.05 %", "holds"),
        ("order as published at lat=10 ms", "holds"),
        ("order as published", "fails"),
        ("order as published but within 45 %", "undecided"),
    ],
)
def test_claims_are_judged(text: str, verdict: str) -> None:
    judged = parse(text, AXES, ["a", "b"]).judged(GRID)
    assert (judged.verdict, judged.claim) == (verdict, text)
    assert judged.why


def test_where_a_claim_fails_is_named_with_its_topology_where_there_are_several() -> None:
    claim = parse("a < 1 ms at lat=10 ms, net=far", AXES, ["a", "b"])
    assert claim.judged(GRID).why == "a is 1100.000 x 1 ms at lat=10 ms, net=far"
    several = pd.concat([GRID.cells, GRID.cells.assign(topology="other")])
    assert claim.judged(GRID._replace(cells=several)).why == "a is 1100.000 x 1 ms at topology=t, lat=10 ms, net=far"


def test_a_crossing_is_where_lines_meet() -> None:
    judged = parse("crossing of a and b between 20 ms and 30 ms at net=near", AXES, ["a", "b"]).judged(GRID)
    assert "23.33 ms" in judged.why, "0.1 below and 0.2 above: a third of the way"


def test_nothing_is_claimed_of_what_is_missing_or_untrusted() -> None:
    claim = parse("a < b", AXES, ["a", "b"])
    times = {("10 ms", "near"): {"a": 1.0, "b": 1.5}, ("20 ms", "near"): {"a": 1.0, "b": 1.5}}
    assert claim.judged(evidence(times)).verdict is ClaimVerdict.holds
    missing, untrusted = claim.judged(evidence(times, failed="it died")), claim.judged(evidence(times, untrusted="a"))
    assert missing.verdict is untrusted.verdict is ClaimVerdict.undecided
    assert "it died" in missing.why
    assert "trusted" in untrusted.why


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("a < b", "holds"),
        ("a < 1.1 s", "holds"),
        ("c > b", "undecided"),
        ("c > 1.9 s", "undecided"),
        ("a is fastest", "undecided"),
        ("crossing of a and b between 10 ms and 20 ms", "fails"),
        ("order as published", "holds"),
        ("order as the model's at lat=10 ms", "undecided"),
    ],
)
def test_a_schedule_that_cannot_be_trusted_leaves_the_claims_on_others_decided(text: str, verdict: str) -> None:
    times = {("10 ms", "near"): {"a": 1.0, "b": 1.5, "c": 2.0}, ("20 ms", "near"): {"a": 1.0, "b": 1.5, "c": 2.0}}
    judged = parse(text, AXES, ["a", "b", "c"]).judged(evidence(times, untrusted="c"))
    assert judged.verdict == verdict, judged.why


def test_a_claim_that_fails_fails_whoever_is_missing() -> None:
    claim = parse("b < a", AXES, ["a", "b"])
    assert (
        claim.judged(evidence({("10 ms", "near"): {"a": 1.0, "b": 1.5}}, failed="it died")).verdict
        is ClaimVerdict.fails
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a < c", "in place of c"),
        ("1 s < 2 s", "a schedule"),
        ("a < b at lot=3", "did you mean lat"),
        ("crossing of a and b between 30 ms and 20 ms", "the smaller one first"),
        ("crossing of a and b between 1 and 2 along len", "along"),
        ("a beats b", "A <= 0.9"),
        ("a < b at lat=40 ms", "in place of 40 ms"),
        ("a < b at lat=20", "in place of 20"),
        ("a < b at net=nearer", "near, far"),
        ("a at lat=10 ms < b", "the right side too"),
        ("a < 3 km", "a time above 0"),
        ("a < 0 s", "a time above 0"),
        ("a < 0 * b", "a factor above 0"),
        ("a < 1.2.3 * b", "in place of 1.2.3"),
        ("crossing of a and b between 20 km and 30 km along lat", "as lat has them"),
        ("error of c <= 1 %", "in place of c"),
    ],
)
def test_a_claim_that_nobody_understands_says_what_would_be(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse(text, AXES, ["a", "b"])


def test_columns_that_an_axis_cannot_have_are_those_of_the_table() -> None:
    assert {"cell", "label", "measured_s", "reasons"} <= outcomes.RESERVED


@pytest.mark.parametrize(
    ("cells", "at_once", "size"), [(0, 2, 1), (1, 2, 1), (6, 2, 3), (16, 2, 8), (32, 2, 16), (33, 2, 9), (100, 2, 13)]
)
def test_boots_share_cells_evenly(cells: int, at_once: int, size: int) -> None:
    assert cell_runs.in_a_boot(cells, at_once) == size
    assert size <= cell_runs.MOST_IN_A_BOOT
