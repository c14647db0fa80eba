"""The testbed from Python: what the functions give is what commands and files say, and what the pages show works."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import test_data_format
from in_process import run_testbed

import testbed
from testbed.errors import BadInput
from testbed.judge.comparison import ScheduleComparison
from testbed.judge.iterations import median_and_iqr
from testbed.spec.document import read_yaml

ROOT = Path(__file__).parents[2]
LONGHAUL, METRO = (ROOT / f"topologies/two-dc-{name}.yaml" for name in ("longhaul", "metro"))
PP4 = ROOT / "workloads/tiny-gpt-pp4.yaml"
NESTED = ("checks", "messages", "memory", "full_scale", "solver")
RECORDED = ROOT / "tests/recorded/format-3-run"


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


# --- predict -------------------------------------------------------------------------------------


def test_a_prediction_is_that_of_the_command() -> None:
    settings = {"parallelism.data": 4, "pacing.F": ["20 ms", "20 ms", "30 ms", "20 ms"], "topology.name": "x"}
    frame = testbed.predict("examples/my_clos.yaml", PP4, settings=settings)
    words = [f"--set={key}={json.dumps(value)}" for key, value in settings.items()]
    told = json.loads(run_testbed("predict", "examples/my_clos.yaml", PP4, "--json", *words).stdout)
    assert list(frame["label"]) == [row["label"] for row in told["schedules"]]
    for row, (_, mine) in zip(told["schedules"], frame.iterrows(), strict=True):
        for key in ("schedule", "predicted_s", "bubble_predicted", "peak_in_flight_predicted", "speedup_predicted"):
            assert mine[key] == row[key], key
        for key in ("predicted_low_s", "predicted_high_s"):
            assert mine[key] == row[key] or (row[key] is None and math.isnan(mine[key]))
        assert mine["predicted_alone_s"] == mine["predicted_s"]
    assert frame["predicted_low_s"].notna().any(), "replicas share links: who comes first decides"
    assert frame.attrs["warnings"] == told["warnings"] != []
    assert frame.attrs["topology"] == "x"


def test_what_files_hold_predicts_the_same_as_the_files() -> None:
    of_files = testbed.predict(LONGHAUL, PP4)
    pd.testing.assert_frame_equal(testbed.predict(read_yaml(LONGHAUL), read_yaml(PP4)), of_files)
    pd.testing.assert_frame_equal(testbed.predict(read_yaml(LONGHAUL), str(PP4)), of_files)
    assert all(
        frame[column].dtype == float
        for frame in (of_files,)
        for column in frame.columns
        if column not in ("label", "job", "schedule")
    )


def test_several_jobs_have_a_row_each_and_cost_each_other_something() -> None:
    frame = testbed.predict(LONGHAUL, [PP4, PP4], schedules="1f1b")
    told = json.loads(run_testbed("predict", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "--json").stdout)
    (case,) = told["cases"]
    assert list(frame["job"]) == [job["job"] for job in case["jobs"]] == ["tiny-gpt-pp4", "tiny-gpt-pp4-2"]
    for key in ("predicted_s", "predicted_alone_s", "slowdown_predicted", "bubble_predicted"):
        assert list(frame[key]) == [job[key] for job in case["jobs"]]
    assert frame["slowdown_predicted"].max() > 1


def test_a_job_at_full_scale_has_both_times_and_what_does_not_fit_is_said() -> None:
    topology, workload = ROOT / "topologies/longhaul-240km.yaml", ROOT / "workloads/paper-llama2-13b.yaml"
    frame = testbed.predict(topology, workload, schedules=["1f1b", "zb-h1"])
    told = json.loads(
        run_testbed("predict", topology, workload, "--schedule=1f1b", "--schedule=zb-h1", "--json").stdout
    )
    assert list(frame["full_scale_s"]) == [row["full_scale"]["predicted_s"] for row in told["schedules"]]
    tight = testbed.predict(LONGHAUL, PP4, schedules=["gpipe", "zb-h2", "1f1b"], settings={"memory": 4})
    assert list(tight["label"]) == ["gpipe", "1f1b"]  # the workload gives gpipe memory of its own
    assert set(tight.attrs["left_out"]) == {"zb-h2"}


@pytest.mark.parametrize(
    ("arguments", "settings", "expected"),
    [
        (("nowhere.yaml", PP4), {}, "nowhere.yaml: file: got 'No such file or directory', expected a YAML file"),
        ((PP4, LONGHAUL), {}, "file: got 'a workload', expected a topology"),
        ((3, PP4), {}, "predict: topology: got 3, expected a path, or a mapping of fields"),
        ((LONGHAUL, 3), {}, "predict: workload: got 3, expected a path, or a mapping of fields"),
        ((LONGHAUL, []), {}, "predict: workload: got [], expected one at least"),
        ((LONGHAUL, PP4), {"microbatches": 0}, f"{PP4}: microbatches: got 0, expected at least 1"),
        ((LONGHAUL, PP4), {"pacing": {1}}, "settings: pacing: got {1}, expected text, a finite number"),
        (
            (LONGHAUL, PP4),
            ["microbatches=4"],
            "settings: got ['microbatches=4'], expected a mapping of",
        ),
        ((LONGHAUL, PP4), {"pacing": "none"}, "pacing: got 'none', expected seconds for F, I and W"),
        (({"name": "x"}, PP4), {}, "topology: datacenters: got 'nothing', expected this field to be given"),
        (({"name": {1}}, PP4), {}, "topology: document: got 'Object of type set is not JSON"),
        (({"name": math.nan}, PP4), {}, "topology: document: got 'Out of range float"),
        ((LONGHAUL, {"name": "x"}), {}, "workload: 6 faults\n  model: got 'nothing', expected this field to be given"),
        ((LONGHAUL, {"datacenters": {}}), {}, "workload: file: got 'a topology', expected a workload"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_what_cannot_be_used_is_one_clear_error(arguments: tuple[Any, Any], settings: Any, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        testbed.predict(*arguments, settings=settings)
    assert expected in str(caught.value)


def test_numbers_of_numpy_are_settings_as_pythons_are() -> None:
    found = [
        testbed.predict(LONGHAUL, PP4, schedules="1f1b", settings={"microbatches": number, "pacing.F": ["1 ms"] * 4})
        for number in (np.arange(4, 6)[0], 4)
    ]
    assert found[0].equals(found[1])


def test_a_document_may_name_files_beside_the_current_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    frame = testbed.predict(LONGHAUL, read_yaml(Path("my_job.yaml")))
    assert list(frame["label"]) == list(testbed.predict(LONGHAUL, "my_job.yaml")["label"])
    monkeypatch.chdir(ROOT)
    with pytest.raises(BadInput, match=r"workload: model.kind: got 'my_model.py', expected a readable file"):
        testbed.predict(LONGHAUL, read_yaml(ROOT / "examples/my_job.yaml"))


# --- load ----------------------------------------------------------------------------------------


def test_results_are_what_the_files_hold(tmp_path: Path) -> None:
    test_data_format.write(tmp_path, test_data_format.found())
    run = testbed.load(str(tmp_path))
    (entry,) = json.loads((tmp_path / "comparison.json").read_text())["schedules"]
    (row,) = run.comparison.to_dict("records")
    for key, value in entry.items():
        if key not in NESTED:
            assert row[key] == value or (value is None and pd.isna(row[key])), key
    assert list(run.verdict["question"]) == [check["question"] for check in entry["checks"]]
    assert list(run.verdict["ok"]) == [check["ok"] for check in entry["checks"]]
    assert run.trusted is entry["trusted"] is True
    for name in ("actions", "messages", "iterations", "links"):
        frame, file = getattr(run, name), pd.read_parquet(tmp_path / f"{name}.parquet")
        assert set(frame.columns) == {*file.columns, "source"}
        assert len(frame) == len(file) > 0
        assert set(frame["source"]) <= {"measured", "predicted"}
    assert set(run.actions["source"]) == {"measured", "predicted"}
    measured_s, _ = median_and_iqr(run.iterations.query("~warmup")["makespan_s"].to_numpy())
    assert measured_s == entry["measured_s"]


@pytest.mark.parametrize("name", ["format-1-run", "format-2-run", "format-3-run"])
def test_runs_of_earlier_versions_are_loaded_too(name: str) -> None:
    run = testbed.load(ROOT / "tests/recorded" / name)
    assert run.complete
    assert len(run.comparison) == len(testbed.compare(run, run))
    assert set(run.actions["source"]) == {"measured", "predicted"}
    assert run.jobs == list(dict.fromkeys(run.comparison["job"]))


def test_an_untrusted_run_and_one_without_tables(tmp_path: Path) -> None:
    for name in ("manifest.json", "comparison.json"):
        shutil.copy(ROOT / "tests/runs/failed" / name, tmp_path)
    run = testbed.load(tmp_path)
    assert not run.trusted
    assert set(run.verdict.loc[~run.verdict["ok"].astype(bool), "label"]) <= set(run.comparison["label"])
    with pytest.raises(BadInput, match=r"actions.parquet: got 'no such file'"):
        _ = run.actions
    with pytest.raises(BadInput, match=r"iterations.parquet: got 'no such file'"):
        testbed.compare(run, run)
    with pytest.raises(BadInput, match=r"manifest.json.*expected the results of a run"):
        testbed.load(ROOT / "docs")


def test_the_numbers_of_a_comparison_are_floats_though_none_is_known() -> None:
    frame = testbed.load(RECORDED).comparison
    assert frame["predicted_low_s"].isna().all()
    assert frame["predicted_low_s"].dtype == frame["disturbed_iterations"].dtype == float
    assert {field for field in ScheduleComparison.__dataclass_fields__ if field not in frame.columns} == {*NESTED}


@pytest.mark.parametrize("schedules", [3, [3], ["1f1b", None]])
def test_schedules_that_have_no_names_are_one_clear_error(schedules: Any) -> None:
    with pytest.raises(BadInput, match=r"predict: schedules: got (3|None), expected labels, names of"):
        testbed.predict(LONGHAUL, PP4, schedules=schedules)
    with pytest.raises(BadInput, match="load: directory: got 3, expected a path"):
        testbed.load(3)  # type: ignore[arg-type]


# --- compare -------------------------------------------------------------------------------------


def test_two_predictions_side_by_side() -> None:
    near, far = testbed.predict(METRO, PP4), testbed.predict(LONGHAUL, PP4, schedules=["zb-h1", "1f1b", "zb-h2"],
                                                             settings={"memory": 8})  # fmt: skip
    rows = {row["label"]: row for row in testbed.compare(near, far).to_dict("records")}
    assert list(rows) == [*near["label"], "zb-h2"]
    for label in ("1f1b", "zb-h1"):
        a_s, b_s = (side.set_index("label")["predicted_s"][label] for side in (near, far))
        assert (rows[label]["a_s"], rows[label]["b_s"], rows[label]["ratio"]) == (a_s, b_s, b_s / a_s)
        assert not rows[label]["overlap"]
    assert all(pd.isna(rows["gpipe"][key]) for key in ("b_source", "b_s", "ratio", "overlap"))
    assert all(pd.isna(rows["zb-h2"][key]) for key in ("a_source", "a_s", "ratio", "overlap"))
    assert {row["b_source"] for row in rows.values() if row["label"] != "gpipe"} >= {"predicted"}


def test_ranges_that_share_a_time_overlap() -> None:
    one = testbed.predict(METRO, PP4, schedules=["1f1b", "zb-h1", "gpipe"])
    earlier_s, later_s = pd.Series([0.2, 0.2, 0.2]), pd.Series([0.0, -0.1, 0.1])
    other = one.assign(predicted_low_s=one["predicted_s"] - earlier_s, predicted_high_s=one["predicted_s"] + later_s)
    for frame in (testbed.compare(one, other), testbed.compare(other, one)):
        assert list(frame["overlap"]) == [True, False, True]


def test_a_run_beside_a_prediction_whatever_its_job_is_called() -> None:
    run = testbed.load(RECORDED)
    predicted = testbed.predict(METRO, read_yaml(PP4) | {"name": "another"}, schedules="1f1b")
    (row,) = testbed.compare(RECORDED, predicted).to_dict("records")
    counted = run.iterations.query("~warmup")["makespan_s"]
    assert (row["a_source"], row["b_source"], row["job"]) == ("measured", "predicted", "tiny-gpt-pp4")
    assert row["a_s"] == run.comparison["measured_s"][0]
    assert counted.min() <= row["a_low_s"] <= row["a_s"] <= row["a_high_s"] <= counted.max()
    assert row["a_high_s"] - row["a_low_s"] == pytest.approx(run.comparison["measured_iqr_s"][0])
    assert row["ratio"] == predicted["predicted_s"][0] / row["a_s"]


def test_what_has_nothing_in_common_is_refused() -> None:
    one, other = (testbed.predict(METRO, PP4, schedules=name) for name in ("1f1b", "gpipe"))
    with pytest.raises(BadInput, match=r"compare: label: got 'gpipe: tiny-gpt-pp4', expected one of 1f1b: tiny-gpt"):
        testbed.compare(one, other)
    with pytest.raises(BadInput, match=r"compare: b: got .* expected a prediction, with label, job"):
        testbed.compare(one, pd.DataFrame({"x": [1]}))
    with pytest.raises(BadInput, match=r"compare: b: got 'no rows', expected a prediction with a case or more"):
        testbed.compare(one, other.iloc[:0])
    with pytest.raises(BadInput, match=r"compare: b: got '1f1b: tiny-gpt-pp4, twice', expected each case and job once"):
        testbed.compare(one, pd.concat([one, one]))
    with pytest.raises(BadInput, match=r"compare: a: got 3, expected what predict or load gives"):
        testbed.compare(3, one)  # type: ignore[arg-type]


# --- the package and its pages -------------------------------------------------------------------


def test_importing_the_package_imports_nothing_else() -> None:
    """The command line imports it first: its time counts for every command."""
    script = (
        "import sys; before = set(sys.modules); import testbed; assert 'predict' in dir(testbed);"
        "print(sorted(name for name in set(sys.modules) - before if name.partition('.')[0] in"
        " ('pandas', 'numpy', 'pydantic', 'rich', 'testbed'))); print(callable(testbed.predict))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["['testbed']", "True"]
    with pytest.raises(AttributeError, match="has no attribute 'predicts'"):
        _ = testbed.predicts
    assert set(testbed.__all__) <= set(dir(testbed))


def test_what_the_page_shows_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a recorded run in the place of the demo's."""
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    for name in ("topologies", "workloads"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(RECORDED, tmp_path / "results/demo")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert len(blocks) == 7
    assert len(names["rows"]) == 3
    assert names["slowest"] > 1
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert documented == set(names["frame"].columns)


def test_the_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    notebook = json.loads(Path("predict_and_compare.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), "predict_and_compare.ipynb", "exec"), names)
    assert (names["distance"]["ratio"] > 1).all()
    assert names["run"].trusted


def test_a_study_is_taken_and_its_claims_judged(tmp_path: Path) -> None:
    document = {
        "name": "mine",
        "topologies": ["two-dc-longhaul"],
        "workloads": ["tiny-gpt-pp4"],
        "schedules": ["gpipe", "1f1b"],
        "over": {"delay": {"field": "links.0.delay", "values": ["1 ms", "50 ms"]}},
        "clock": "none",
        "claims": ["gpipe < 1f1b", "1f1b < 1 s"],
    }
    study = testbed.Study(document)
    assert list(study.cells["delay"]) == ["1 ms", "50 ms"]
    table, claims = study.take(tmp_path / "out", quiet=True)
    assert list(table["label"]) == ["gpipe", "1f1b"] * 2
    assert list(claims["verdict"]) == ["holds", "fails"]
    alone = testbed.predict("two-dc-longhaul", "tiny-gpt-pp4", settings={"topology.links.0.delay": "50 ms"})
    assert set(table["predicted_s"][2:]) <= set(alone["predicted_s"])
    with pytest.raises(BadInput, match=r"study: claims\.0"):
        testbed.Study(document | {"claims": ["gpipe wins"]})


@pytest.mark.parametrize("at_once", [0, -1, 1.5, True])
def test_a_study_is_taken_by_a_whole_number_of_guests(at_once: Any, tmp_path: Path) -> None:
    study = testbed.Study({"name": "s", "topologies": [str(LONGHAUL)], "workloads": [str(PP4)], "clock": "none"})
    with pytest.raises(BadInput, match=rf"study: at_once: got {at_once}, expected a whole number"):
        study.take(tmp_path / "out", at_once=at_once)
    with pytest.raises(BadInput, match="study: directory: got None"):
        study.take(None)  # type: ignore[arg-type]
