"""`testbed baseline` where no root is needed: files, settings, exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from in_process import Done, run_testbed
from made_baselines import CONTROLLED, FORMAT_1, KEPT, LONGHAUL, PP4, REAL, ROOT, figures, planned_with, write_run

from testbed.baseline import keep, store
from testbed.baseline.regression import CheckResult, judge
from testbed.baseline.settings import made_anew, with_settings
from testbed.baseline.tolerance import FigureKind, Mode
from testbed.errors import BadInput
from testbed.goodput.recovering_plan import with_recovery
from testbed.plan.plan import Adaptation, Profile
from testbed.planning import file as plan_file
from testbed.planning.prediction import freely
from testbed.planning.resolve import load_plan, with_background, with_clock
from testbed.planning.schedules import choose, make, with_selected
from testbed.results import control_times
from testbed.results.control_times import ControlTimes
from testbed.spec.workload import Pacing


def run_baseline(*arguments: str | Path) -> Done:
    return run_testbed("baseline", *arguments)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one baseline, predicted only."""
    place = tmp_path_factory.mktemp("baselines")
    done = run_baseline("save", "longhaul", LONGHAUL, PP4, "--predict-only", "--baselines", place, "--reason", "test")
    assert done.returncode == 0, done.stderr
    return place


def test_a_kept_order_that_other_ranks_cannot_run_is_refused_by_the_name_of_its_plan() -> None:
    with pytest.raises(BadInput, match=r"plan.json: schedule 1f1b: rank 0: .*: 4 rows for 3 ranks"):
        with_settings(planned_with(["1f1b"]), ["parallelism.pipeline=3"], "plan.json")


def test_settings_are_laid_over_what_the_plan_was_made_of() -> None:
    """Values that no decimal number has come back to the last bit; nothing else changes."""
    directions = "forward: {rate: 3 Mbit/s}, reverse: {rate: 0.7 Gbit/s, queue: 1.1 MB}"
    link = f"topology.links=[{{between: [paris, warsaw], fibre: 1234.567 km, delay: 0.1 ms, {directions}}}]"
    plan = planned_with(["zb-h1", "geopipe"], link, "pacing.F=[1.1 ms, 2.3 ms, 0.7 us, 3 s]", "iterations=3")
    again = with_settings(plan, ["iterations=5"], "plan.json")
    assert again.network == plan.network
    assert [case.routes for case in again.cases] == [case.routes for case in plan.cases]
    assert [case.jobs[0].rows for case in again.cases] == [case.jobs[0].rows for case in plan.cases]
    schedules = [case.jobs[0].choice for case in plan.cases]
    workload = plan.jobs[0].workload.model_copy(update={"iterations": 5, "schedules": schedules})
    assert again.jobs == (replace(plan.jobs[0], workload=workload),)


def test_a_setting_of_a_link_is_for_both_directions() -> None:
    plan = with_settings(planned_with(["1f1b"]), ["topology.links.0.delay=5 ms"], "plan.json")
    assert [(link.delay_s, link.rate_bps) for link in plan.network.directions] == [(0.005, 1e9)] * 2
    with pytest.raises(BadInput, match=r"links.0.fibre: got '9 km', expected delay: a plan has all of it in one value"):
        with_settings(plan, ["topology.links.0.fibre=9 km"], "plan.json")


def test_a_setting_of_a_link_is_for_both_but_for_what_only_reverse_says() -> None:
    """As in a file that has so much in `reverse`."""
    there = "topology.links=[{between: [paris, warsaw], delay: 3 ms, rate: 1 Gbit/s, queue: 1 MB, loss: 0.01, reverse: "
    plan = planned_with(["1f1b"], f"{there}{{rate: 0.3 Gbit/s, loss: 0}}}}]")
    again = with_settings(plan, ["links.0.delay=40 ms", "links.0.rate=2 Gbit/s"], "plan.json")
    assert [(link.delay_s, link.rate_bps) for link in again.network.directions] == [(0.04, 2e9), (0.04, 3e8)]
    assert [(link.queue_bytes, link.loss) for link in again.network.directions] == [(1e6, 0.01), (1e6, 0.0)]
    own = planned_with(["1f1b"], there.replace("queue: 1 MB, ", "forward: {queue: 1 MB}, ") + "{}}]")
    assert with_settings(own, ["seed=2"], "plan.json").network == own.network


def test_settings_of_a_job_at_full_scale_are_those_of_its_file() -> None:
    files = ROOT / "topologies/longhaul-240km.yaml", ROOT / "workloads/paper-llama2-13b.yaml"
    plan = load_plan(*files)
    plan = with_selected(plan, [make(plan, choose(plan, ["1f1b"]), strict=True)])
    again = with_settings(plan, ["iterations=2"], "plan.json")
    assert again.jobs[0].workload.pacing == plan.jobs[0].workload.pacing
    link, before = again.network.directions[0], plan.network.directions[0]
    assert (link.delay_s, link.rate_bps) == pytest.approx((before.delay_s, before.rate_bps), rel=1e-12)


def test_settings_are_refused_where_more_was_decided_than_the_files_say() -> None:
    plan = replace(planned_with(["1f1b"]), elephants_from=1e6)
    assert with_settings(plan, [], "plan.json") == plan
    with pytest.raises(BadInput, match=r"plan.json: plan: got '1f1b', expected no --set: a policy chose its routes"):
        with_settings(plan, ["iterations=2"], "plan.json")


def test_settings_keep_background_traffic_failures_and_rounds(tmp_path: Path) -> None:
    (tmp_path / "others.csv").write_text("from,to,rate\nparis,warsaw,300 Mbit/s\n")
    busy = with_background(planned_with(["1f1b"]), tmp_path / "others.csv")
    assert with_settings(busy, ["seed=1"], "plan.json").background == busy.background
    failing = with_recovery(planned_with(["1f1b"]), "every=2,save=20 ms", ["rank 1 at 0.5 s"], None)
    assert with_settings(failing, ["seed=1"], "plan.json").recovery == failing.recovery
    assert made_anew(failing, [], "plan.json").recovery == failing.recovery
    free = freely(planned_with(["1f1b"]))
    assert with_settings(free, ["seed=1"], "plan.json").cases == free.cases
    assert with_settings(free, ["seed=1"], "plan.json").rounds == "free"
    adapting = replace(busy, adaptation=Adaptation("static", (), 0.0))
    with pytest.raises(BadInput, match=r"no --set: .* a controller"):
        with_settings(adapting, ["seed=1"], "plan.json")


def test_a_plan_without_pacing_is_kept_without_it() -> None:
    plan = load_plan(LONGHAUL, PP4, settings=["pacing=none"])
    plan = with_selected(plan, [make(plan, choose(plan))])
    assert with_settings(plan, ["iterations=2"], "plan.json").jobs[0].workload.pacing is None


def test_a_run_without_pacing_is_kept_as_it_was_before_its_profile(tmp_path: Path) -> None:
    """What actions took there, and the schedules for that, the run to come finds for itself."""
    plan, run = planned_with(["1f1b"]), tmp_path / "run"
    (job,), took, held = plan.jobs, Pacing.model_construct(F=0.01, I=0.01, W=0.01, B=0.02), (1.0,) * 4
    unpaced = job.workload.model_copy(update={"pacing": None})
    profiled = replace(job, workload=unpaced, profile=Profile(took, took, held, held))
    run.mkdir()
    write_run(run)
    plan_file.write(replace(plan, jobs=(profiled,)), run / "plan.json")
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["vm"]
    (run / "manifest.json").write_text(json.dumps(manifest | {"clock": "real"}))
    keep.save_run(tmp_path / "kept", run, keep.Terms("", quick=False))
    kept = store.plan_of(tmp_path / "kept")
    assert kept.jobs == (replace(profiled, profile=None),)
    assert [case.jobs[0].rows for case in kept.cases] == [None]
    assert FigureKind.predicted not in store.read(tmp_path / "kept").tolerances


def test_a_run_with_a_control_is_kept_with_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_run(run)
    plan_file.write(planned_with(["1f1b"]), run / "plan.json")
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["vm"]
    (run / "manifest.json").write_text(json.dumps(manifest | {"clock": "real"}))
    times = [ControlTimes("1f1b", "", (0.5, 0.4, 0.6)), ControlTimes("zb-h1", "", (0.3,))]
    (run / "control.json").write_text(json.dumps(control_times.as_document(times)))
    keep.save_run(tmp_path / "kept", run, keep.Terms("", quick=False))
    kept = store.read(tmp_path / "kept")
    assert kept.controlled
    assert [figures.control_s for figures in kept.figures] == [0.5]
    assert kept.tolerances == CONTROLLED
    for wrong, message in (
        ({"controls": 3}, "controls: got 3, expected a list"),
        ({"controls": [{"label": "1f1b", "job": "", "iterations_s": []}]}, r"controls\.0\.iterations_s: .* above 0"),
        ({"controls": [{"label": "1f1b", "job": ""}]}, r"controls\.0\.iterations_s"),
    ):
        (run / "control.json").write_text(json.dumps(wrong))
        with pytest.raises(BadInput, match=message):
            keep.save_run(tmp_path / "again", run, keep.Terms("", quick=False))


def test_a_control_where_time_is_a_guests_is_refused() -> None:
    done = run_testbed("run", LONGHAUL, PP4, "--clock", "virtual", "--control")
    assert done.returncode == 2
    assert "--control" in done.stderr
    assert "virtual time does not depend on the machine" in " ".join(done.stderr.split())


def test_what_is_saved_is_found_the_same(root: Path) -> None:
    done = run_baseline("check", "--baselines", root, "--json", "-q")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["within_tolerance"]
    assert [f["schedule"] for f in document["baselines"][0]["findings"]] == [
        "gpipe",
        "1f1b",
        "zb-h1",
        "crosspipe-greedy",
    ]


@pytest.mark.parametrize("rank", range(4))
def test_a_slot_lengthened_by_half_a_per_cent_on_one_rank_is_caught(root: Path, rank: int) -> None:
    slots = ["20 ms"] * 4
    slots[rank] = "20.1 ms"
    done = run_baseline("check", "longhaul", "--baselines", root, "--set", f"pacing.F=[{', '.join(slots)}]")
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith("OUTSIDE TOLERANCE: 4 of 4 schedules (4 slower)")
    assert "plans changed on purpose: pacing.F" in done.stdout


def test_faster_is_a_fault_unless_allowed(root: Path, tmp_path: Path) -> None:
    files = ("--junit", tmp_path / "junit.xml", "--markdown", tmp_path / "summary.md")
    link = "{between: [paris, warsaw], fibre: 1000 km, rate: 1 Gbit/s}"
    faster = ("check", root / "longhaul", "--baselines", root, "--set", f"topology.links=[{link}]")
    done = run_baseline(*faster, *files)
    assert done.returncode == 1, done.stdout
    assert "faster" in done.stdout.splitlines()[0]
    assert "testbed baseline renew" in done.stdout
    ElementTree.parse(tmp_path / "junit.xml")
    assert "**OUTSIDE TOLERANCE" in (tmp_path / "summary.md").read_text()
    assert run_baseline(*faster, "--allow-faster").returncode == 0


FEW_PARAMETERS = ("--set", "parallelism.data=2", "--set", "data_parallel.parameters=1 kB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "nothing"), "got 'nothing', expected a directory with baseline.json"),
        (("save", "longhaul", LONGHAUL, PP4, "--predict-only"), "expected a new name (or --overwrite)"),
        (("save", "Long Haul", LONGHAUL, PP4), "expected lower-case letters"),
        (("save", "other"), "expected TOPOLOGY and WORKLOAD, a plan, or --run DIR"),
        (("save", "other", LONGHAUL, PP4, "--run", ROOT), "expected no plan beside it"),
        (("save", "other", "--run", ROOT / "docs"), "expected the results of a run"),
        (("save", "other", LONGHAUL, PP4, "--set", "pacing=none"), "computation takes no virtual time"),
        (("save", "other", LONGHAUL, PP4, "--set", "pacing=none", "--predict-only"), "pacing: got 'none'"),
        (("save", "other", LONGHAUL, PP4, *FEW_PARAMETERS), "expected at least 477.2 kB"),
        (("check", "--junit", "/proc/nowhere/junit.xml"), "expected a file that can be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(root: Path, arguments: tuple[str | Path, ...], message: str) -> None:
    done = run_baseline(*arguments, "--baselines", root)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in root.iterdir()] == ["longhaul"]


def test_a_baseline_of_another_format_is_refused(root: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for file in (root / "longhaul").iterdir():
        (old / file.name).write_text(file.read_text())
    document = json.loads((old / "baseline.json").read_text())
    (old / "baseline.json").write_text(json.dumps(document | {"format": 0}))
    done = run_baseline("check", old)
    assert done.returncode == 2
    assert "format: got 0, expected 1 or 2" in done.stderr


def test_a_baseline_without_a_plan_of_its_own_is_read(tmp_path: Path) -> None:
    """One that an earlier version saved: renewed, it has plan.json."""
    kept = tmp_path / "longhaul"
    shutil.copytree(FORMAT_1, kept)
    done = run_baseline("check", "--predict-only", "--baselines", tmp_path, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"] == "within tolerance: 1 baseline, 4 schedules"
    assert (kept / "comparison.json").read_text() == (KEPT / "comparison.json").read_text()
    assert store.plan_of(kept) == store.plan_of(KEPT)
    (kept / "workload.yaml").unlink()
    done = run_baseline("check", "--predict-only", "--baselines", tmp_path)
    assert done.returncode == 2
    assert "workload.yaml: file: got" in done.stderr


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("plan.json", lambda _: "", "expected a plan as `testbed plan` writes it"),
        ("plan.json", lambda text: text.replace('"0F0 ', '"1F0 '), "expected a schedule that can be run"),
        ("plan.json", lambda text: json.dumps(json.loads(text) | {"cases": []}), "cases: got 'none'"),
        ("comparison.json", lambda text: text.replace('"predicted_s"', '"told_s"', 1), "schedules.0.predicted_s"),
        ("baseline.json", lambda text: text.replace('"mode": "predict"', '"mode": "guess"'), "mode: got 'guess'"),
    ],
)
def test_a_damaged_baseline_is_one_clear_line(
    root: Path, tmp_path: Path, name: str, damage: Callable[[str], str], message: str
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(root / "longhaul", bad)
    (bad / name).write_text(damage((bad / name).read_text()))
    done = run_baseline("check", bad, "--predict-only")
    assert done.returncode == 2, done
    assert f"bad/{name}: " in done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


TWO_JOBS = ("--set", "microbatches=4", "--schedule", "1f1b", "--schedule", "zb-h1")


def test_every_job_has_figures_of_its_own(tmp_path: Path) -> None:
    done = run_baseline("save", "jobs", LONGHAUL, PP4, PP4, *TWO_JOBS, "--predict-only", "--baselines", tmp_path)
    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "jobs/comparison.json").read_text())["schedules"]
    names = [(label, job) for label in ("1f1b", "zb-h1") for job in ("tiny-gpt-pp4", "tiny-gpt-pp4-2")]
    assert [(row["schedule"], row["job"]) for row in kept] == names
    predicted = json.loads(run_testbed("predict", tmp_path / "jobs/plan.json", "--json").stdout)["cases"]
    assert [row["predicted_s"] for row in kept] == [job["predicted_s"] for case in predicted for job in case["jobs"]]
    assert run_baseline("check", "--baselines", tmp_path).returncode == 0
    longer = run_baseline("check", "--baselines", tmp_path, "--json", "--set", "pacing.F=[20 ms, 20 ms, 21 ms, 20 ms]")
    assert longer.returncode == 1
    found = json.loads(longer.stdout)["baselines"][0]["findings"]
    assert {(finding["schedule"], finding["verdict"]) for finding in found} == {
        (f"{label}: {job}", "slower") for label, job in names
    }
    listed = json.loads(run_baseline("list", "--json", "--baselines", tmp_path).stdout)["baselines"]
    assert listed[0]["schedules"] == [f"{label}: {job}" for label, job in names]


def test_a_job_is_held_against_its_own_figures() -> None:
    """Ratios too are over the first schedule of the same job."""
    before = [replace(figures(label, time_s), job=job) for label in "ab" for job, time_s in (("x", 1.0), ("y", 0.5))]
    now = [replace(row, measured_s=1.0) if row.name == "b: y" else row for row in before]
    found = judge("baseline", before, CheckResult(tuple(now)), REAL)
    assert [(finding.schedule, finding.verdict) for finding in found] == [
        ("a: x", "same"),
        ("a: y", "same"),
        ("b: x", "same"),
        ("b: y", "slower"),
    ]


def test_a_plan_in_a_file_is_kept(tmp_path: Path) -> None:
    """On the clock that it has, unless another one is asked for."""
    written, kept = tmp_path / "plan.json", tmp_path / "kept"
    written.write_text(plan_file.to_json(with_clock(planned_with(["1f1b"]), Mode.virtual.clock(7))))
    done = run_baseline("save", "mine", written, "--predict-only", "--baselines", kept)
    assert done.returncode == 0, done.stderr
    assert store.plan_of(kept / "mine").cases == plan_file.read(written).cases
    done = run_baseline("save", "mine", written, "--schedule", "1f1b", "--baselines", tmp_path)
    assert "--schedule: got '1f1b'" in done.stderr


def test_ranks_on_other_nodes_than_they_would_be_given_are_found(tmp_path: Path) -> None:
    """As if another version had saved the baseline, which placed ranks in another way."""
    root, crossed = tmp_path / "baselines", ["paris/0", "warsaw/0", "paris/1", "warsaw/1"]
    saved = run_baseline("save", "mine", LONGHAUL, PP4, "--schedule", "1f1b", "--predict-only", "--baselines", root)
    assert saved.returncode == 0, saved.stderr
    plan = store.plan_of(root / "mine")
    workload = plan.jobs[0].workload.model_copy(update={"placement": crossed})
    placed = replace(plan, jobs=(replace(plan.jobs[0], workload=workload),))
    (root / "mine/plan.json").write_text(plan_file.to_json(placed), encoding="utf-8")
    checked = run_baseline("check", "--predict-only", "--json", "--baselines", root)
    (baseline,) = json.loads(checked.stdout)["baselines"]
    found = {finding["quantity"]: finding["verdict"] for finding in baseline["findings"]}
    assert found == {"made anew": "slower"}


def test_renewed_figures_have_the_new_reason(root: Path, tmp_path: Path) -> None:
    done = run_baseline("save", "mine", LONGHAUL, PP4, "--schedule", "zb-h1", "--predict-only", "--baselines", tmp_path)
    assert done.returncode == 0, done.stderr
    comparison = tmp_path / "mine" / "comparison.json"
    document = json.loads(comparison.read_text())
    document["schedules"][0]["predicted_s"] = 1.0
    comparison.write_text(json.dumps(document))
    assert run_baseline("check", "--baselines", tmp_path).returncode == 1
    unsaid = run_baseline("renew", "mine", "--reason", " ", "--baselines", tmp_path)
    assert (unsaid.returncode, "--reason: text: got ' '" in unsaid.stderr) == (2, True)
    assert run_baseline("renew", "mine", "--reason", "it was wrong", "--baselines", tmp_path).returncode == 0
    assert run_baseline("check", "--baselines", tmp_path).returncode == 0
    listed = json.loads(run_baseline("list", "--json", "--baselines", tmp_path).stdout)["baselines"]
    assert [(one["name"], one["reason"], one["schedules"]) for one in listed] == [("mine", "it was wrong", ["zb-h1"])]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_predictions_of_the_kept_baselines_still_hold() -> None:
    """All in results/baselines/, runs too: their schedules are predicted, and made, as when they were saved."""
    done = run_baseline("check", "--predict-only", "--quiet")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("within tolerance")


def test_files_that_changed_are_seen_where_they_are_asked_for(tmp_path: Path) -> None:
    """Wherever the command is called; presets are presets, and a schedule's file is one of them."""
    network, job, code = (tmp_path / name for name in ("nets/net.yaml", "job.yaml", "mine.py"))
    network.parent.mkdir()
    network.write_text((ROOT / "topologies/two-dc-longhaul.yaml").read_text())
    job.write_text((ROOT / "workloads/tiny-gpt-pp4.yaml").read_text())
    code.write_text("from testbed.schedule.one_f_one_b import one_f_one_b as mine\n")
    chosen = ("--schedule", f"{code}:mine", "--schedule", "zb-h1", "--set", "microbatches=9", "--set", "memory=9")
    root = ("--baselines", tmp_path / "kept")
    for name, of in (("own", (network, job)), ("preset", ("two-dc-metro", "tiny-gpt-pp4"))):
        assert run_baseline("save", name, *of, *chosen, "--predict-only", *root).returncode == 0

    def verdicts(*words: str) -> dict[str, list[str]]:
        document = json.loads(run_baseline("check", *words, "--json", *root).stdout)
        return {one["name"]: [found["verdict"] for found in one["findings"]] for one in document["baselines"]}

    assert verdicts("--files") == verdicts() == {"own": ["same"] * 2, "preset": ["same"] * 2}
    network.write_text(network.read_text().replace("rate: 1 Gbit/s", "rate: 990 Mbit/s"))
    assert verdicts() == {"own": ["same"] * 2, "preset": ["same"] * 2}
    assert verdicts("--files") == {"own": ["slower"] * 2, "preset": ["same"] * 2}
    code.write_text("from testbed.schedule.gpipe import gpipe as mine\n")
    assert verdicts("--files")["preset"] == ["faster", "changed", "same"]
    renewed = run_baseline("renew", "own", "preset", "--files", "--reason", "another network and schedule", *root)
    assert renewed.returncode == 0, renewed.stderr
    assert verdicts("--files") == verdicts() == {"own": ["same"] * 2, "preset": ["same"] * 2}
    network.unlink()
    gone = run_baseline("check", "own", "--files", *root)
    assert (gone.returncode, "net.yaml: file: got 'No such file" in gone.stderr) == (2, True)
