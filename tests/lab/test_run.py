"""The main job as a user starts it: real containers, links, processes and gradients, on a small plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from data_format import PAGE, documented
from in_process import run_testbed

from testbed.plan.costs import predict_case, schedule_of
from testbed.planning.file import read
from testbed.results.destination import FILES, LOCK
from testbed.results.load import load_traces
from testbed.results.recheck import recheck

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]
SMALL = (
    "--set=microbatches=6",
    "--set=pacing={F: 10 ms, I: 10 ms, W: 10 ms}",
    "--set=schedules=[1f1b, crosspipe-greedy]",
    "--iterations=3",
    "--set=warmup=1",
    "--again=0",
)
COMPARISON_KEYS = {
    "schedule",
    "statistic",
    "label",
    "measured_s",
    "measured_iqr_s",
    "predicted_s",
    "measured_p95_s",
    "predicted_p95_s",
    "predicted_low_s",
    "covered",
    "left_out",
    "packets_lost",
    "notes",
    "predicted_high_s",
    "error",
    "bubble_measured",
    "bubble_predicted",
    "peak_in_flight_measured",
    "peak_in_flight_predicted",
    "speedup_measured",
    "speedup_predicted",
    "trusted",
    "reasons",
    "solver",
    "predicted_on_this_host_s",
    "on_this_host_low_s",
    "on_this_host_high_s",
    "disturbed_iterations",
    "measured_undisturbed_s",
    "checks",
    "not_taken",
    "messages",
    "memory",
    "full_scale",
}


def run_longhaul(*words: str) -> subprocess.CompletedProcess[str]:
    """A run that ended as it should: 5, if this machine was too noisy for it to be trusted."""
    command = [sys.executable, "-m", "testbed", "run", "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode in (0, 5), done.stderr
    return done


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = tmp_path_factory.mktemp("run") / "results"
    done = run_longhaul(*SMALL, "--out", str(out), "--json")
    return done, out


def test_the_comparison_is_printed_and_kept(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, out = finished
    document = json.loads(done.stdout)
    assert document == json.loads((out / "comparison.json").read_text())
    assert [row["schedule"] for row in document["schedules"]] == ["1f1b", "crosspipe-greedy"]
    for row in document["schedules"]:
        assert set(row) == COMPARISON_KEYS
        assert row["trusted"] == (not row["reasons"])
        assert row["trusted"] == all(check["ok"] for check in row["checks"])
        assert all(check["question"] and check["limit"] and check["why"] for check in row["checks"])
        assert row["on_this_host_low_s"] <= row["predicted_on_this_host_s"] <= row["on_this_host_high_s"]
        # a machine adds to messages, and takes nothing off them
        assert row["predicted_on_this_host_s"] > row["predicted_s"]
        assert 0 <= row["disturbed_iterations"] <= document["iterations"]
        assert sum(flow["messages"] for flow in row["messages"]) == 3 * 2 * 6 * document["iterations"]
        assert all(flow["impossible"] == 0 for flow in row["messages"])
        assert row["error"] == pytest.approx(row["measured_s"] / row["predicted_s"] - 1)
        assert row["peak_in_flight_measured"] == row["peak_in_flight_predicted"]
    assert document["complete"]
    assert (done.returncode == 0) == all(row["trusted"] for row in document["schedules"])


def test_nothing_is_faster_than_physics(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    """A mechanism, not a clock: every message needs its link's delay and its own time on the wire."""
    _, out = finished
    messages = pd.read_parquet(out / "messages.parquet")
    wide = messages[(messages["source_rank"] + messages["target_rank"] == 3) & messages["awaited"]]
    measured = wide[wide["source"] == "measured"]
    assert len(measured) > 10
    assert set(measured["kind"].astype(str)) == {"activation", "gradient"}
    unawaited = messages[(messages["source"] == "measured") & ~messages["awaited"]]
    assert unawaited["arrived_s"].isna().all(), "who was not waiting does not know when it came"
    assert messages["taken_s"].notna().all()
    assert (messages["payload_bytes"] == 1e6).all()
    assert ((measured["arrived_s"] - measured["sent_s"]) >= 0.0102 + 8e6 / 1e9).all()
    iterations = pd.read_parquet(out / "iterations.parquet")
    assert (iterations["makespan_s"] >= 6 * 0.030).all()


def test_measured_and_predicted_traces_have_one_form(
    finished: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, out = finished
    actions = pd.read_parquet(out / "actions.parquet")
    for schedule, rows in actions.groupby("schedule"):
        predicted, measured = rows[rows["source"] == "predicted"], rows[rows["source"] == "measured"]
        assert set(measured["iteration"]) == set(range(4)), schedule  # 1 warm-up + 3
        key = ["rank", "stage", "kind", "microbatch", "part_begin"]
        for _, one in measured.groupby("iteration"):
            for rank in range(4):
                order = one[one["rank"] == rank].sort_values("start_s")[key].to_numpy().tolist()
                planned = predicted[predicted["rank"] == rank].sort_values("start_s")[key].to_numpy().tolist()
                assert order == planned
        posted = pd.read_parquet(out / "messages.parquet").query("source == 'measured' and iteration > 0")
        assert (posted["posted_s"] < 0).all(), "receives are posted before their iteration starts"


def test_the_loss_goes_down_alike(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, out = finished
    iterations = pd.read_parquet(out / "iterations.parquet")
    losses = {name: rows["loss"].tolist() for name, rows in iterations.groupby("schedule")}
    assert losses["1f1b"] == pytest.approx(losses["crosspipe-greedy"], rel=1e-5)
    assert losses["1f1b"][-1] < losses["1f1b"][0]


def test_links_were_counted_and_lost_nothing(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, out = finished
    links = pd.read_parquet(out / "links.parquet")
    # 6 microbatches of 1 MB each way in each of 4 iterations cross the only link
    assert (links["wire_bytes"] > 24e6).all()
    assert (links["wire_bytes"] < 24e6 * 1.02).all()
    assert (links["dropped"] == 0).all()


def test_the_manifest_tells_what_was_run(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, out = finished
    manifest = json.loads((out / "manifest.json").read_text())
    assert [spec["microbatches"] for spec in manifest["workload_specs"]] == [6]
    assert manifest["packages"]["torch"] == version("torch")
    assert manifest["lab"]["shaper"] in ("relay", "netem")
    assert manifest["nodes"] == ["paris/0", "paris/1", "warsaw/0", "warsaw/1"]


def test_files_hold_what_the_page_says_no_more_no_less(
    finished: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, out = finished
    names = {path.name for path in out.iterdir() if path.is_file()} - {LOCK}
    assert names == set(FILES) - {"profile.json", "wan.json", "link_events.parquet", "adaptation.svg"}, (
        "what is not listed would be lost when older results are replaced"
    )
    for table in sorted(out.glob("*.parquet")):
        section = "iterations.parquet" if table.stem == "baseline_iterations" else table.name
        assert set(pq.read_schema(table).names) == documented(section), table.name
    manifest, comparison = (json.loads((out / name).read_text()) for name in ("manifest.json", "comparison.json"))
    assert set(manifest) == documented("manifest.json") - {"vm", "kept_guest"}
    assert set(comparison) == documented("comparison.json") - {"vm", "link_events", "adaptation", "goodput", "ended"}
    page = PAGE.read_text()
    for name in ("plan", "links", "numerics", "message_costs"):
        document = json.loads((out / f"{name}.json").read_text())
        (written,) = document["jobs"].values() if name == "numerics" else (document,)
        missing = [key for key in written if f"`{key}`" not in page]
        assert not missing, name


def require_same_verdict(out: Path, document: dict[str, Any]) -> None:
    """From the files of the run that said so."""
    again = recheck(out)
    for row in document["schedules"]:
        checks = [check._asdict() | {"ok": check.ok} for check in again[row["label"]]]
        assert json.loads(json.dumps(checks)) == row["checks"]
        assert row["trusted"] == all(check.ok for check in again[row["label"]])


def test_the_picture_and_the_traces_come_from_the_files(
    finished: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, out = finished
    document = json.loads((out / "comparison.json").read_text())
    rows, traces = document["schedules"], load_traces(out)
    assert list(traces) == [(row["schedule"], source) for row in rows for source in ("predicted", "measured")]
    for row in rows:
        predicted, measured = (traces[row["schedule"], source] for source in ("predicted", "measured"))
        assert predicted.makespans()[0] == row["predicted_s"]
        assert row["measured_s"] == np.median(measured.makespans()[-document["iterations"] :])
    picture = (out / "timeline.svg").read_text()
    assert "<svg" in picture
    assert all(f"{row['schedule']} - measured" in picture for row in rows)


def test_tensor_ranks_talk_in_the_middle_of_computing(tmp_path: Path) -> None:
    """Under real-time priorities gloo's thread must not wait for a rank that it keeps from its processor."""
    sizes = "--set=parallelism={pipeline: 2, tensor: 2}", "--set=warmup=1", "--iterations=1"
    split = (*sizes, "--schedule=1f1b", "--set=model.d_model=16", "--set=model.sequence=16")
    done = run_longhaul(*SMALL[:2], *split, "--quiet", "--out", str(tmp_path / "out"))
    (row,) = json.loads((tmp_path / "out/comparison.json").read_text())["schedules"]
    assert row["measured_s"] > 0
    told = subprocess.run(
        [sys.executable, "-m", "testbed", "report", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == told.stdout, "what a run ends with is told from its files"
    assert "1f1b: " in told.stdout.splitlines()[-1]


def test_the_schedules_of_a_run_are_kept_for_another(
    finished: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path
) -> None:
    """A search would take long and find others: of its label the kept one is taken, when a run is planned."""
    _, out = finished
    given = tmp_path / "schedules.json"
    given.write_text((out / "schedules.json").read_text().replace("crosspipe-greedy", "search"))
    words = ("topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml", *SMALL[:2], "--schedule=search")
    planned = run_testbed("plan", *words, f"--schedules-from={given}", "-o", tmp_path / "plan.json")
    assert planned.returncode == 0, planned.stderr
    (again,), (_, before) = read(tmp_path / "plan.json").cases, read(out).cases
    assert again.jobs[0].rows == before.jobs[0].rows


def test_results_are_never_overwritten_unasked(finished: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, out = finished
    before = (out / "comparison.json").read_bytes()
    command = [sys.executable, "-m", "testbed", "run", "topologies/two-dc-metro.yaml", "workloads/tiny-gpt-pp4.yaml"]
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "a new or empty directory" in done.stderr
    assert (out / "comparison.json").read_bytes() == before


def unpaced(out: Path, ranks: int) -> tuple[dict[str, Any], str]:
    """The comparison of a small unpaced run, and what it said."""
    command = [sys.executable, "-m", "testbed", "run", "topologies/two-dc-metro.yaml", "workloads/tiny-gpt-pp4.yaml"]
    settings = ("pacing=none", "schedules=[1f1b]", "microbatches=4", f"parallelism.pipeline={ranks}")
    done = subprocess.run(
        [
            *command,
            *(f"--set={one}" for one in settings),
            "--iterations=3",
            "--again=0",
            "--no-picture",
            "--json",
            "--out",
            str(out),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (0, 5), done.stderr
    return json.loads(done.stdout), done.stderr


def test_without_pacing_the_machine_itself_is_measured(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two unpaced ranks need two cores")
    document, _ = unpaced(tmp_path / "out", 2)
    (row,) = document["schedules"]
    assert row["measured_s"] > 4 * 8e6 / 1e9, "four messages of 1 MB take their time on the wire"
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert len(set(manifest["pinning"]["cores"])) == 2
    assert not any("share" in reason for reason in row["reasons"])
    kept = json.loads((tmp_path / "out/profile.json").read_text())
    assert all(len(kept[name]["pacing"][kind]) == 2 for name in ("few", "many") for kind in "FIWB")
    require_same_verdict(tmp_path / "out", document)
    plan = read(tmp_path / "out")
    schedule = schedule_of(plan, plan.cases[0])
    assert schedule is not None
    assert predict_case(plan, plan.cases[0], schedule).makespans()[0] == row["predicted_s"], "from its files alone"


def test_more_unpaced_ranks_than_cores_are_never_trusted(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) >= 4:
        pytest.skip("this machine has a core for every rank")
    document, said = unpaced(tmp_path / "out", 4)
    (row,) = document["schedules"]
    assert not row["trusted"]
    assert any("4 unpaced ranks share" in reason for reason in row["reasons"])
    assert said.index("the run will not be trusted: 4 unpaced ranks share") < said.index("training 1f1b")
