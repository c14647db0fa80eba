"""Whole studies that only predict: what lies there already, boots that die, tables; measured ones are in tests/vm."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from in_process import run_testbed
from processes import wait_until
from study_files import FILES, study_file

from testbed.cli.study import exit_code
from testbed.errors import BadInput, ExitCode
from testbed.spec.study import StudyAxis, StudySpec, study_of
from testbed.study import cell_runs, cells, outcomes
from testbed.study.axis_plots import draw_axes
from testbed.study.cell_locks import CellLocks, cells_directory
from testbed.study.claim_text import parse
from testbed.study.claims import StudyTables
from testbed.study.outcomes import CellOutcome
from testbed.study.study_run import Finished


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


def test_commands_that_are_listed_are_those_of_the_study_as_asked(tmp_path: Path) -> None:
    path = study_file(tmp_path, over={"m": {"field": "microbatches", "values": [4, 8]}}, schedules=["1f1b"])
    asked = ("--set", "set={links.0.delay: 40 ms}", "--out", tmp_path / "out")
    first, _ = run_testbed("study", path, *asked, "--list").stdout.splitlines()
    alone = run_testbed(*shlex.split(first.partition("#")[0])[1:], "--json")
    assert json.loads(alone.stdout)["taken_now"] == 1
    whole = json.loads(run_testbed("study", path, *asked, "--json").stdout)
    assert whole["taken_now"] == 1, "the other one"


def test_an_event_behind_the_end_of_a_training_does_not_fit(tmp_path: Path) -> None:
    event = "link paris--warsaw down for 30 ms then delay 9 ms at 2.0 s"
    over = {"m": {"field": "microbatches", "values": [4, 16]}}
    path = study_file(
        tmp_path, set={"topology.events": [event], "memory": 16}, over=over, schedules=["1f1b"], iterations=3
    )
    done = run_testbed("study", path, "--out", tmp_path / "out", "--json")
    short, long = json.loads(done.stdout)["cells"]
    assert short["failed"].startswith("does not fit: event: at: ")
    assert long["failed"] is None
