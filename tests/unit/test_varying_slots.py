"""Slots that are drawn: what a workload may say of them, what is drawn, and what the model makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from in_process import run_testbed

from testbed.cli.answer import answer
from testbed.errors import BadInput
from testbed.judge.comparison import ScheduleComparison
from testbed.pipeline.ir import KINDS, Kind
from testbed.plan.drawn_slots import slots_of
from testbed.plan.plan import Plan
from testbed.planning import file, schedules
from testbed.planning.drawn_iterations import simulate_rounds, times_of_rounds
from testbed.planning.left_out import left_out_of
from testbed.planning.prediction import iteration_times, loads_of_case, predict_together, predicted_rows
from testbed.planning.resolve import load_plan
from testbed.planning.schedules import Candidate, choose, ranked, with_every_job
from testbed.spec import Workload, load_workload
from testbed.sweep.reshape import reshaped, shape_of
from testbed.thresholds import TIE

ROOT = Path(__file__).parents[2]
TOPOLOGY, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
VARIABLE = ROOT / "workloads/tiny-gpt-variable-length.yaml"
SPREAD = {"pacing.F": "{median: 20 ms, p95: 24 ms}"}
STAGES = (0, 1, 2, 3)
FORWARD, BACKWARD, INPUT, WEIGHT = (KINDS.index(kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))


def workload(settings: Mapping[str, str]) -> Workload:
    return load_workload(PP4, dict(settings))


def planned(settings: Mapping[str, str], *schedules: str) -> Plan:
    unfinished = load_plan(TOPOLOGY, PP4, settings=[f"{key}={value}" for key, value in settings.items()])
    return with_every_job(unfinished, schedules)


# --- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        (
            "pacing.F",
            "{median: 20 ms, p95: 4 ms}",
            "pacing.F.p95",
            "got '4 ms', expected no less than the median, 20 ms",
        ),
        ("pacing.F", "{median: 20 ms, p59: 24 ms}", "pacing.F.p59", "did you mean p95?"),
        ("pacing.F", "{median: 20, p95: 24 ms}", "pacing.F.median", "a time with a unit"),
        ("pacing.F", "{p95: 24 ms}", "pacing.F.median", "a time beside p95"),
        ("pacing.W", "{median: 20 ms}", "pacing.W", "p95, samples or profile"),
        ("pacing.F", "{median: [20 ms, 10 ms], p95: [24 ms, 12 ms]}", "pacing.F.median", "each of 4 ranks"),
        ("pacing.F", "{median: 20 ms, p95: 24 ms, each: sample}", "pacing.F.each", "'rank'"),
        ("pacing.F", "{samples: [1 ms, 2]}", "pacing.F.samples.1", "a time with a unit"),
        ("pacing.F", "{profile: none.csv}", "pacing.F.profile", "a readable CSV file"),
        ("pacing.factors", "[1, 1, 2]", "pacing.factors", "each of 4 ranks"),
        ("pacing.factors", "[[1, 1, 1, 1], [2, 2, 2, 2]]", "pacing.factors", "each of 1 replicas"),
        ("pacing.factors", "[1, 1, 1, 0]", "pacing.factors.3", "at least 0"),
    ],
)
def test_what_cannot_be_is_said_with_field_and_value(key: str, value: str, field: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        workload({key: value})
    assert f": {field}: got " in str(caught.value)
    assert expected in str(caught.value)


def test_samples_may_come_from_a_file_and_stay_in_the_plan(tmp_path: Path) -> None:
    (tmp_path / "slots.csv").write_text("F ms,B us\n19,40000\n21,41000\n35.5,42000\n")
    (tmp_path / "job.yaml").write_text(PP4.read_text().replace("F: 20 ms", "F: {profile: slots.csv, median: 40 ms}"))
    plan = load_plan(TOPOLOGY, tmp_path / "job.yaml", settings=["pacing.B={profile: slots.csv}"])
    pacing = plan.jobs[0].workload.pacing
    assert pacing is not None
    assert [pacing.of("F", 0), pacing.of("B", 0)] == pytest.approx([0.04, 0.041])
    (tmp_path / "slots.csv").unlink()
    assert file.from_json(file.to_json(plan), "plan.json").jobs[0].workload.pacing == pacing
    drawn = slots_of(plan.jobs[0].workload, STAGES, 0)
    assert set(np.round(drawn[:, :, FORWARD] / 0.04 * 21, 4).ravel()) <= {19.0, 21.0, 35.5}
    for cell in ("4x", "-4", "nan", "1e999", "4_1"):
        (tmp_path / "slots.csv").write_text(f"F ms,B us\n19,40000\n21,{cell}\n")
        expected = rf"pacing\.B\.profile: got '{cell}', expected a number, 0 or more, in line 3 of slots\.csv, column B"
        with pytest.raises(BadInput, match=expected):
            load_plan(TOPOLOGY, tmp_path / "job.yaml", settings=["pacing.B={profile: slots.csv}"])
    with pytest.raises(BadInput, match=r"columns F ms, B us.*one column W with its unit"):
        load_plan(TOPOLOGY, tmp_path / "job.yaml", settings=["pacing.W={profile: slots.csv}"])
    (tmp_path / "slots.csv").write_text("F ms,B us\n19,40000\n")
    with pytest.raises(BadInput, match=r"F\.profile: got '1 below its name', expected 2 samples or more in column F"):
        load_plan(TOPOLOGY, tmp_path / "job.yaml")


# --- what is drawn -------------------------------------------------------------------------------


def test_draws_have_the_distribution_that_is_asked_for() -> None:
    asked = workload(SPREAD | {"microbatches": "64"})
    drawn = np.stack([slots_of(asked, STAGES, number) for number in range(100)])
    forward = drawn[:, :, :, FORWARD].ravel()
    assert np.median(forward) == pytest.approx(0.020, rel=3e-3)
    assert np.percentile(forward, 95) == pytest.approx(0.024, rel=3e-3)
    assert abs(np.corrcoef(forward[1:], forward[:-1])[0, 1]) < 0.02
    assert (drawn[:, :, :, WEIGHT] == 0.02).all()


def test_a_draw_hangs_on_its_key_alone() -> None:
    asked = workload(SPREAD | {"pacing.I": "{median: 20 ms, p95: 30 ms}"})
    drawn = slots_of(asked, STAGES, 5)
    assert (slots_of(asked, STAGES, 5) == drawn).all()
    assert not np.isin(slots_of(asked, STAGES, 6)[0, :, FORWARD], drawn[0, :, FORWARD]).any()
    more = slots_of(workload({**SPREAD, "pacing.I": "{median: 20 ms, p95: 30 ms}", "microbatches": "12"}), STAGES, 5)
    assert (more[:, :, :, :8] == drawn).all(), "the number of microbatches changes no draw"
    assert (slots_of(workload(SPREAD | {"seed": "2"}), STAGES, 5)[0, :, FORWARD] != drawn[0, :, FORWARD]).all()
    assert drawn[0, :, BACKWARD] == pytest.approx(drawn[0, :, INPUT] + drawn[0, :, WEIGHT]), "B is I and W together"
    wave = slots_of(asked, (0, 1, 2, 3, 3, 2, 1, 0), 5)
    assert 2 * wave[:, :4] == pytest.approx(drawn)
    assert (wave[:, 4:] == wave[:, 3::-1]).all(), "stages of a rank share its draw"


@pytest.mark.parametrize(
    ("each", "differ"),
    [("action", "rmik"), ("microbatch", "mi"), ("iteration", "ri"), ("rank", "r")],
)
def test_what_has_a_draw_of_its_own(each: str, differ: str) -> None:
    spread = f"{{median: 20 ms, p95: 24 ms, each: {each}}}"
    asked = workload({"pacing.F": spread, "pacing.I": spread})
    drawn = np.stack([slots_of(asked, STAGES, number)[0][:, [FORWARD, INPUT]] for number in range(3)])
    for axis, name in enumerate("irkm"):
        same = bool((np.diff(drawn, axis=axis) == 0).all())
        assert same == (name not in differ), name


# --- what the model makes of it ------------------------------------------------------------------


def test_every_iteration_is_predicted_with_its_own_slots() -> None:
    plan = planned(SPREAD | {"iterations": "9"}, "1f1b", "zb-h1")
    for case, row in zip(plan.cases, predicted_rows(plan), strict=True):
        rounds = simulate_rounds(plan, case, loads_of_case(plan, case))
        assert rounds.iterations().tolist() == list(range(11)), "warm-up is predicted as well"
        for number in (2, 7):
            one = rounds.of_iteration(number).actions
            slots = slots_of(plan.jobs[0].workload, STAGES, number)[one["replica"], one["stage"], one["kind"]]
            expected = slots[np.arange(len(one)), one["microbatch"]]
            assert one["end_s"] - one["start_s"] == pytest.approx(expected, abs=1e-9)
        counted = rounds.makespans()[2:]
        assert (row.predicted_s, row.predicted_p95_s) == (np.median(counted), np.percentile(counted, 95))
        assert iteration_times(plan, case) == pytest.approx((row.predicted_s,))
        assert predict_together(plan, case).makespans() == pytest.approx([row.predicted_s]), "the typical one"


def test_slots_of_no_spread_are_those_that_are_written() -> None:
    written = planned({}, "1f1b", "zb-h1")
    drawn = planned({"pacing.F": "{median: 20 ms, p95: 20 ms}", "pacing.factors": "[[1, 1, 1, 1]]"}, "1f1b", "zb-h1")
    for one, other in zip(predicted_rows(written), predicted_rows(drawn), strict=True):
        assert other.predicted_s == pytest.approx(one.predicted_s, rel=1e-12)
        assert other.predicted_p95_s == pytest.approx(other.predicted_s)
        assert one.predicted_p95_s is None


def test_replicas_have_slots_of_their_own() -> None:
    """Unequal accelerators: the pipeline with slow ones decides, and generators plan for it."""
    degrees = {
        "parallelism.data": "2",
        "parallelism.pipeline": "2",
        "model.layers": "4",
        "data_parallel.sharding": "none",
    }
    (even,) = predicted_rows(planned(degrees, "1f1b"))
    (uneven,) = predicted_rows(planned(degrees | {"pacing.factors": "[[1, 1], [1, 2]]"}, "1f1b"))
    (slow,) = predicted_rows(planned(degrees | {"pacing.factors": "[1, 2]"}, "1f1b"))
    assert uneven.predicted_p95_s is None, "every iteration is the same"
    assert even.predicted_s < 0.8 * uneven.predicted_s
    assert uneven.predicted_s == pytest.approx(slow.predicted_s, rel=0.01)
    plan = planned(degrees | {"pacing.factors": "[[1, 1], [1, 2]]"}, "1f1b")
    trace = predict_together(plan, plan.cases[0]).actions
    last = trace[(trace["stage"] == 1) & (trace["kind"] == FORWARD)]
    slots = last["end_s"] - last["start_s"]
    assert slots == pytest.approx(np.where(last["replica"] == 1, 0.04, 0.02))


def test_other_microbatches_keep_the_spread() -> None:
    asked = workload(SPREAD | {"pacing.factors": "[1, 1, 1.5, 1]"})
    shape = shape_of(asked)._replace(microbatch_size=2)
    pacing = reshaped(asked, shape, 0.0).pacing
    assert pacing is not None
    assert pacing.of("F", 0) == pytest.approx(0.01)
    assert pacing.spreads[0].p95 == pytest.approx([0.012] * 4)
    assert pacing.factors == [1, 1, 1.5, 1]


def test_the_command_shows_median_and_percentile() -> None:
    words = ("predict", TOPOLOGY, PP4, "--schedule", "1f1b", "--set", "pacing.F={median: 20 ms, p95: 24 ms}")
    shown = run_testbed(*words)
    assert shown.returncode == 0, shown.stderr
    assert "percentile" in shown.stdout
    (row,) = json.loads(run_testbed(*words, "--json").stdout)["schedules"]
    assert row["predicted_s"] < row["predicted_p95_s"] < 1.1 * row["predicted_s"]
    (plain,) = json.loads(run_testbed(*words[:5], "--json").stdout)["schedules"]
    assert plain["predicted_p95_s"] is None


# --- which schedule is robust --------------------------------------------------------------------


def test_schedules_are_compared_over_the_same_draws() -> None:
    words = ("schedule", "compare", TOPOLOGY, VARIABLE, "--schedule", "zb-h1", "--schedule", "crosspipe-greedy")
    done = run_testbed(*words, "--noise", "60", "--json")
    assert done.returncode == 0, done.stderr
    drawn = json.loads(done.stdout)["noise"]
    assert drawn["draws"] == 60
    found = {row["label"]: row for row in drawn["schedules"]}
    plan = with_every_job(load_plan(TOPOLOGY, VARIABLE, settings=["iterations=60"]), list(found))
    times = {case.label: times_of_rounds(plan, case, loads_of_case(plan, case))[:, 0] for case in plan.cases}
    least = np.min(list(times.values()), axis=0)
    for label, own in times.items():
        assert found[label]["median_s"] == pytest.approx(np.median(own)), "the draws that the lab would meet"
        assert found[label]["p95_s"] == pytest.approx(np.percentile(own, 95))
        assert found[label]["worst_regret_s"] == pytest.approx((own - least).max())
        assert found[label]["worst_regret"] == pytest.approx((own / least - 1).max())
    shown = run_testbed(*words, "--noise", "60")
    assert "worst regret" in shown.stdout
    assert "robust: zb-h1" in shown.stdout
    assert "by median crosspipe-greedy" in " ".join(shown.stdout.split())
    assert "with their medians" in run_testbed(*words).stderr


def test_best_is_robust_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "QUICK", {"time_limit_s": 0.2})
    listed = "schedules=[{schedule: best, memory: 4, robust: true}]"
    by_p95 = [(one.choice.label, one.makespan_s) for one in robust_candidates(listed)]
    by_median = [one.choice.label for one in robust_candidates(listed.replace("true", "false"))]
    assert by_p95 == sorted(by_p95, key=lambda pair: pair[1])
    assert by_median.index("crosspipe-greedy") < by_median.index("zb-h1"), "by their medians"
    order = [label for label, _ in by_p95]
    assert order.index("zb-h1") < order.index("crosspipe-greedy"), "by p95"


def robust_candidates(listed: str) -> list[Candidate]:
    plan = load_plan(TOPOLOGY, VARIABLE, settings=[listed])
    (best,) = choose(plan)
    return ranked(plan, best).found


def test_an_answer_names_what_is_fastest_by_the_percentile() -> None:
    def row(label: str, median_s: float, p95_s: float) -> ScheduleComparison:
        times, rest = (median_s, 0.0, median_s, 0.0), (0.3, 0.3, 4.0, 4.0)
        known = ScheduleComparison(label, label, *times, *rest, None, None, trusted=True, reasons=[])
        return replace(known, measured_p95_s=p95_s, predicted_p95_s=p95_s)

    greedy, zero_bubble = row("crosspipe-greedy", 0.649, 0.973), row("zb-h1", 0.669, 0.953)
    said = answer([greedy, zero_bubble], TIE)
    assert said.startswith("fastest: crosspipe-greedy, 649 ms; by 95th percentile: zb-h1, 953 ms; ")
    assert "percentile" not in answer([greedy, row("zb-h1", 0.669, 0.983)], TIE)
    same = [replace(one, predicted_p95_s=one.predicted_s) for one in (greedy, zero_bubble)]
    assert "percentile" not in answer(same, TIE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("predict", TOPOLOGY, PP4, "--schedule", "best", "--robust"), "best.robust: got True, expected pacing"),
        (("predict", TOPOLOGY, PP4, "--robust"), "--robust: schedule: got 'gpipe, 1f1b"),
        (("predict", TOPOLOGY, PP4, "--set", "schedules=[{schedule: best, robust: 1}]"), "schedules.0.robust: got 1"),
        (("predict", TOPOLOGY, PP4, "--set", "schedules=[{schedule: best, bold: 1}]"), "memory, label, robust"),
        (("schedule", "compare", TOPOLOGY, PP4, "--noise", "20"), "--noise: option: got 20, expected pacing"),
    ],
)
def test_robustness_needs_slots_that_vary(words: tuple[str | Path, ...], said: str) -> None:
    done = run_testbed(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_what_the_model_leaves_out_of_a_case_that_goes_on_is_looked_for_in_its_own_iterations(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    words = (
        "two-dc-longhaul",
        "tiny-gpt-pp4",
        "--schedule",
        "1f1b",
        "--swap",
        "zb-h1@2",
        "--iterations",
        "4",
        "-o",
        out,
    )
    varying = ("--set", "pacing.F={median: 20 ms, p95: 24 ms}", "--set", "topology.links.0.queue=64 MB")
    done = run_testbed("plan", *words, "--schedule", "zb-h1", *varying)
    assert done.returncode == 0, done.stderr
    plan = file.read(out)
    assert [case.continues is None for case in plan.cases] == [True, False]
    assert [left_out_of(plan, case, 0) for case in plan.cases] == [[], []]
