"""Baselines: what counts as slower, faster or less true, how that is told, and the commands where no root is needed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from in_process import Done, run_testbed

from testbed.baseline import check_report, keep, store
from testbed.baseline.check import on_one_text
from testbed.baseline.environment import differences
from testbed.baseline.junit import junit
from testbed.baseline.measure import Measurement, measure
from testbed.baseline.regression import CheckResult, CheckVerdict, Figures, Finding, is_regression, judge
from testbed.baseline.settings import made_anew, with_settings
from testbed.baseline.tolerance import Band, FigureKind, Mode, Tolerances, default_tolerances, describe, from_document
from testbed.errors import BadInput, Interrupted, RunFailed
from testbed.goodput.recovering_plan import with_recovery
from testbed.judge.comparison import ScheduleComparison
from testbed.plan.plan import Adaptation, Plan, Profile
from testbed.planning import file as plan_file
from testbed.planning.prediction import freely
from testbed.planning.resolve import load_plan, with_background, with_clock
from testbed.planning.schedules import choose, make, with_selected
from testbed.progress import Lines
from testbed.results import control_times
from testbed.results.control_times import ControlTimes
from testbed.spec.workload import Pacing
from testbed.vm import command
from testbed.vm.command import GuestTraining

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
KEPT, FORMAT_1 = ROOT / "results/baselines/longhaul-pp4", ROOT / "tests/recorded/format-1-baseline"
ENVIRONMENT = {"kernel": {"key": "6.12-abc", "sha256": "0123456789"}, "versions": {"python": "3.11.2"}}

VIRTUAL = default_tolerances(Mode.virtual, paced=True)
REAL = default_tolerances(Mode.real, paced=True)
CONTROLLED = default_tolerances(Mode.real, paced=True, controlled=True)


def figures(schedule: str = "1f1b", measured_s: float = 0.8, predicted_s: float = 0.8) -> Figures:
    return Figures(
        schedule,
        predicted_s,
        bubble_predicted=0.25,
        peak_in_flight_predicted=4,
        remade_s=predicted_s,
        measured_s=measured_s,
        measured_iqr_s=0.0,
        error=(measured_s - predicted_s) / predicted_s,
        bubble_measured=0.25,
        peak_in_flight_measured=4,
        losses=(5.0, 4.5),
    )


def planned_with(names: Sequence[str], *settings: str) -> Plan:
    """The shipped plan with these schedules."""
    plan = load_plan(LONGHAUL, PP4, settings=settings)
    return with_selected(plan, [make(plan, choose(plan, names), strict=True)])


FACTS = {
    "name": "a job",
    "shaper": "netem",
    "transport": "otn-lossless",
    "clock": "virtual",
    "ranking_as_predicted": True,
}


def write_run(directory: Path) -> None:
    """What is read of a finished run."""
    kept = figures().as_json()
    row = {name: kept[name] for name in kept.keys() & ScheduleComparison.__dataclass_fields__.keys()}
    row |= {"label": kept["schedule"], "speedup_measured": 1.0, "speedup_predicted": 1.0}
    (directory / "comparison.json").write_text(json.dumps({**FACTS, "schedules": [row]}))
    manifest = {
        "clock": "virtual",
        "kernel": "7.2",
        "vm": {"kernel": ENVIRONMENT["kernel"]},
        "shaper": "netem",
        "python": "3.11.2",
        "packages": {},
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    rows = {"schedule": ["1f1b"] * 3, "job": [0] * 3, "warmup": [True, False, False], "loss": [9.0, 5.0, 4.5]}
    pd.DataFrame(rows).to_parquet(directory / "iterations.parquet")


def verdicts(before: Figures, now: Figures, bands: dict[FigureKind, Band] | None = None) -> dict[str, CheckVerdict]:
    found = judge("b", [before], CheckResult((now,)), VIRTUAL if bands is None else bands)
    return {str(finding.quantity): finding.verdict for finding in found}


# --- the judgement -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured_s", "verdict"),
    [(0.8, "same"), (0.80003, "same"), (0.79997, "same"), (0.80005, "slower"), (0.79995, "faster")],
)
def test_virtual_time_may_move_by_50_ppm(measured_s: float, verdict: str) -> None:
    now = replace(figures(), measured_s=measured_s)
    assert verdicts(figures(), now) == {"measured": verdict}


def test_short_iterations_may_move_by_20_us() -> None:
    before = figures(measured_s=0.1, predicted_s=0.1)
    assert verdicts(before, replace(before, measured_s=0.100019)) == {"measured": "same"}
    assert verdicts(before, replace(before, measured_s=0.100021)) == {"measured": "slower"}


def test_a_slower_prediction_and_another_schedule_of_the_generator_are_told_apart() -> None:
    assert verdicts(figures(), replace(figures(), predicted_s=0.81, remade_s=0.81)) == {"predicted": "slower"}
    assert verdicts(figures(), replace(figures(), remade_s=0.79)) == {"made anew": "faster"}
    assert verdicts(figures(), replace(figures(), predicted_s=0.81, remade_s=0.82)) == {
        "predicted": "slower",
        "made anew": "slower",
    }
    refused = verdicts(figures(), replace(figures(), remade_s=None))
    assert refused == {"made anew": "missing"}, "a generator that refuses the plan now"


def test_less_true_is_a_larger_distance_from_the_prediction() -> None:
    """Only away from 0: a model that comes closer is no fault, nor one that changes sides."""
    assert verdicts(figures(), replace(figures(), error=-2e-4)) == {"error": "less true"}
    assert verdicts(figures(), replace(figures(), error=4e-5)) == {"measured": "same"}
    assert verdicts(replace(figures(), error=3e-4), replace(figures(), error=-3e-4)) == {"measured": "same"}
    assert verdicts(replace(figures(), error=0.02), replace(figures(), error=0.0)) == {"measured": "same"}


def test_another_bubble_memory_or_loss_at_the_same_time_is_a_change() -> None:
    assert verdicts(figures(), replace(figures(), bubble_measured=0.26)) == {"bubble": "changed"}
    assert verdicts(figures(), replace(figures(), peak_in_flight_measured=5)) == {"in flight": "changed"}
    assert verdicts(figures(), replace(figures(), losses=(5.0, 4.501))) == {"loss": "changed"}
    slower = replace(figures(), measured_s=0.9, bubble_measured=0.3)
    assert verdicts(figures(), slower) == {"measured": "slower"}, "its bubble says nothing more"


def test_an_untrusted_or_missing_or_failed_schedule_is_a_regression() -> None:
    now = replace(figures(), trusted=False, reasons=("2 packets were dropped",))
    (found,) = judge("b", [figures()], CheckResult((now,)), VIRTUAL)
    assert (found.verdict, found.note) == (CheckVerdict.untrusted, "2 packets were dropped")
    assert is_regression(found, allow_faster=True)
    both = [figures(), figures("zb-h1")]
    found = judge("b", both, CheckResult((figures("zb-h1"),)), VIRTUAL)[0]
    assert (found.schedule, found.verdict) == ("1f1b", CheckVerdict.missing)
    found = judge("b", both, CheckResult((), "a worker died"), VIRTUAL)[1]
    assert (found.schedule, found.verdict, found.note) == ("zb-h1", CheckVerdict.failed, "a worker died")
    found = judge("b", [figures()], CheckResult(tuple(both)), VIRTUAL)[1]
    assert (found.schedule, found.verdict) == ("zb-h1", CheckVerdict.missing)


def test_on_a_real_clock_only_ratios_inside_the_run_count() -> None:
    before = (figures(), figures("zb-h1", measured_s=0.7, predicted_s=0.69))

    def found(first_s: float, second_s: float) -> list[CheckVerdict]:
        now = (replace(before[0], measured_s=first_s), replace(before[1], measured_s=second_s))
        return [finding.verdict for finding in judge("b", before, CheckResult(now), REAL)]

    assert found(1.6, 1.4) == ["same", "same"], "a machine half as fast"
    assert found(0.8, 0.71) == ["same", "same"]
    assert found(0.8, 0.78) == ["same", "slower"]
    assert found(0.8, 0.6) == ["same", "faster"]
    assert verdicts(before[0], replace(before[0], error=0.02), dict(REAL)) == {"speed-up": "same"}
    assert verdicts(before[0], replace(before[0], error=0.04), dict(REAL)) == {"error": "less true"}


def with_control(measured_s: float, control_s: float | None) -> Figures:
    return replace(figures(), measured_s=measured_s, control_s=control_s)


@pytest.mark.parametrize(
    ("measured_s", "control_s", "verdict"),
    [
        (0.80, 0.40, "same"),
        (0.83, 0.46, "same"),  # a slower machine, hidden by the links
        (0.90, 0.40, "slower"),
        (0.90, 0.409, "slower"),  # steady, within 2.5 %
        (0.90, 0.36, "slower"),  # a faster machine makes nothing slower
        (0.88, 0.44, "machine"),  # as much as a share
        (0.86, 0.42, "machine"),
        (1.60, 0.44, "slower"),  # by more than the machine explains
        (0.70, 0.40, "faster"),
        (0.70, 0.35, "machine"),
    ],
)
def test_a_control_tells_a_slower_machine_from_a_regression(measured_s: float, control_s: float, verdict: str) -> None:
    before, now = with_control(0.8, 0.4), CheckResult((with_control(measured_s, control_s),))
    (found,) = judge("b", [before], now, CONTROLLED)
    assert (found.quantity, found.verdict) == ("measured", verdict)
    if verdict == "same":
        assert not found.note
    else:
        assert found.note.startswith("control ")
    assert is_regression(found, allow_faster=False) == (verdict in ("slower", "faster"))
    report = check_report.CheckReport((checked(now, before, mode=Mode.real, bands=CONTROLLED),), False)
    assert bool(report.of_machine) == (verdict == "machine")
    assert check_report.as_document(report)["within_tolerance"] == (verdict == "same")
    assert check_report.as_document(report)["trusted"] == (verdict != "machine")
    (line, *_) = [line for line, _ in check_report.table(report)]
    begins = {"same": "within tolerance", "machine": "NOT TO BE TRUSTED: the machine explains 1 of 1 schedule"}
    assert line.startswith(begins.get(verdict, "OUTSIDE TOLERANCE"))
    (suite,) = ElementTree.fromstring(junit(report))
    errors, failures = (int(suite.get(name, "")) for name in ("errors", "failures"))
    assert (errors, failures) == (verdict == "machine", verdict in ("slower", "faster"))


@pytest.mark.parametrize(
    ("measured_s", "control_s", "expected"),
    [
        (0.80, 0.40, ["untrusted"]),
        (0.80, 0.60, ["machine"]),
        (0.90, 0.40, ["slower"]),  # a longer link, as one that the link gate finds
        (1.20, 0.60, ["machine"]),
    ],
)
def test_an_untrusted_run_with_a_control_is_judged_by_it(
    measured_s: float, control_s: float, expected: list[str]
) -> None:
    now = replace(with_control(measured_s, control_s), trusted=False, reasons=("a link is longer",))
    found = judge("b", [with_control(0.8, 0.4)], CheckResult((now,)), CONTROLLED)
    assert [finding.verdict for finding in found] == expected
    assert "a link is longer" in found[0].note


def test_what_a_control_does_not_explain_counts_beside_it() -> None:
    """Another order, or other losses, come from no machine."""
    now = replace(with_control(1.2, 0.6), losses=(5.0, 4.6), predicted_s=0.81, remade_s=0.81)
    found = {
        finding.quantity: finding.verdict
        for finding in judge("b", [with_control(0.8, 0.4)], CheckResult((now,)), CONTROLLED)
    }
    assert found == {"measured": "machine", "predicted": "slower", "loss": "changed"}


def test_a_baseline_without_a_control_is_judged_as_ever_and_a_lost_control_is_told() -> None:
    assert not {FigureKind.measured, FigureKind.control} & set(REAL)
    assert verdicts(with_control(0.8, None), with_control(1.6, 0.4), dict(REAL)) == {"speed-up": "same"}
    lost = verdicts(with_control(0.8, 0.4), with_control(0.8, None), dict(CONTROLLED))
    assert lost == {"control": "missing"}
    assert "control_s" not in figures().as_json()
    kept = with_control(0.8, 0.4)
    assert Figures.from_json(kept.as_json(), "comparison.json", "schedules.0") == kept
    assert kept.predicted_only().control_s is None


def test_without_pacing_the_prediction_is_not_compared() -> None:
    bands = dict(default_tolerances(Mode.real, paced=False))
    assert verdicts(figures(), replace(figures(), predicted_s=0.5, remade_s=None), bands) == {"speed-up": "same"}


def test_every_tolerance_has_its_reason() -> None:
    for mode in Mode:
        for line in [*describe(default_tolerances(mode, paced=True), mode), *describe(CONTROLLED, Mode.real)]:
            assert "set in this baseline" not in line


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (3, "got 3, expected an object"),
        ({"speed": {}}, r"tolerances.speed: got \{\}, expected one of measured"),
        ({"measured": {"absolute": 1}}, "expected an object with absolute and relative"),
        ({"measured": {"absolute": -1, "relative": 0}}, "expected numbers of 0 or more"),
    ],
)
def test_bad_tolerances_are_refused(document: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        from_document(document, "baseline.json")


def test_another_kernel_or_version_is_a_hint() -> None:
    now = {"kernel": {"key": "7.2-abc", "sha256": "fedcba9876"}, "versions": {"python": "3.11.7", "torch": "2"}}
    assert differences(ENVIRONMENT, ENVIRONMENT) == []
    assert differences(ENVIRONMENT, now) == [
        "kernel: 6.12-abc (01234567) then, 7.2-abc (fedcba98) now",
        "python: 3.11.2 then, 3.11.7 now",
        "torch: none then, 2 now",
    ]


@pytest.mark.parametrize(("python", "verdict"), [("3.11.2", "changed"), ("3.13.5", "same")])
def test_losses_are_compared_where_the_same_python_is_at_work(python: str, verdict: str) -> None:
    """The text that is trained on is its standard library."""
    baseline = store.Baseline("longhaul", Mode.virtual, "2026-01-01", "", False, "netem", VIRTUAL, ENVIRONMENT, ())
    now = CheckResult((replace(figures(), losses=(5.0, 4.6)),), "", {"versions": {"python": python}})
    before, now = on_one_text(baseline, [figures()], now)
    assert [finding.verdict for finding in judge("longhaul", before, now, VIRTUAL)] == [verdict]


def test_a_prediction_depends_on_no_kernel() -> None:
    now = {"kernel": {"key": "7.2-abc"}, "versions": {"python": "3.11.2", "torch": "2"}}
    told = checked(CheckResult((figures(),), "", now), figures(), mode=Mode.predict)
    assert told.hints == []


def test_a_boot_that_fails_leaves_what_it_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = with_clock(planned_with(["1f1b"]), Mode.virtual.clock())
    tasks = [Measurement(name, plan, Mode.virtual, "netem") for name in ("first", "second")]
    error: Exception = RunFailed("the guest did not finish within 9 s")

    def fails(chosen: object, trainings: Sequence[GuestTraining], **_: object) -> None:
        write_run(trainings[0].directory)
        raise error

    monkeypatch.setattr(command, "choose_machine", lambda _: None)
    monkeypatch.setattr(command, "train", fails)
    (tmp_path / "runs").mkdir()
    outcomes = measure(tasks, tmp_path / "runs", limit_s=9, reporter=Lines(quiet=True))
    assert not outcomes["first"].failure
    assert outcomes["second"].failure == "the guest did not finish within 9 s"
    error = Interrupted("interrupted")
    with pytest.raises(Interrupted):
        measure(tasks, tmp_path / "again", limit_s=9, reporter=Lines(quiet=True))


# --- how it is told ------------------------------------------------------------------------------


def checked(
    now: CheckResult, *before: Figures, mode: Mode = Mode.virtual, bands: Tolerances = VIRTUAL
) -> check_report.Checked:
    baseline = store.Baseline("longhaul", mode, "2026-01-01", "", False, "netem", bands, ENVIRONMENT, before)
    return check_report.Checked(baseline, mode, bands, now, tuple(judge("longhaul", before, now, bands)))


def mixed(*, allow_faster: bool = False) -> check_report.CheckReport:
    """One the same, one slower with control characters in a reason, one faster; on another kernel."""
    names = ("1f1b", "crosspipe-greedy", "zb-h1", "interleaved-1f1b")
    untrusted = replace(figures(names[3]), trusted=False, reasons=("rank 1 said: <a> & \x1b[31m | " + "long " * 30,))
    now = (figures(), figures(names[1], 0.812, 0.8), figures(names[2], 0.7, 0.8), untrusted)
    environment = ENVIRONMENT | {"kernel": {"key": "7.2-abc"}}
    return check_report.CheckReport((checked(CheckResult(now, "", environment), *map(figures, names)),), allow_faster)


def test_the_table_begins_with_the_verdict_and_fits_80_columns() -> None:
    lines = [line for line, _ in check_report.table(mixed())]
    assert lines[0].startswith("OUTSIDE TOLERANCE: 3 of 4 schedules")
    assert max(map(len, lines)) <= 80
    (slower,) = [line for line in lines if "crosspipe-greedy measured" in line]
    assert " ".join(slower.split()) == "crosspipe-greedy measured 800.000 ms 812.000 ms +12 ms +1.500% slower"
    assert any(line.startswith("kernel: 6.12-abc (01234567) then, 7.2-abc now") for line in lines)
    assert any(line.startswith("  measured: 20 us or 50 ppm (over ten seeds") for line in lines)


def test_all_the_same_is_within_tolerance() -> None:
    good = check_report.CheckReport((checked(CheckResult((figures(),), "", ENVIRONMENT), figures()),), False)
    assert good.verdict == "within tolerance: 1 baseline, 1 schedule"
    assert not good.outside
    assert not good.remarks()


def test_a_difference_of_kernel_alone_is_no_fault() -> None:
    other = ENVIRONMENT | {"kernel": {"key": "7.2-abc"}}
    told = check_report.CheckReport((checked(CheckResult((figures(),), "", other), figures()),), False)
    assert not told.outside
    assert told.remarks() == ["kernel: 6.12-abc (01234567) then, 7.2-abc now (1 baseline)"]


def test_faster_can_be_allowed() -> None:
    assert {finding.schedule for finding in mixed().outside} >= {"zb-h1"}
    assert "zb-h1" not in {f.schedule for f in mixed(allow_faster=True).outside if f.verdict is CheckVerdict.faster}


def test_junit_has_the_times_and_tells_failures_from_errors() -> None:
    (suite,) = ElementTree.fromstring(junit(mixed()))
    counted = {name: suite.get(name) for name in ("name", "tests", "failures", "errors")}
    assert counted == {"name": "longhaul", "tests": "4", "failures": "2", "errors": "1"}
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    assert len(cases["1f1b"]) == 0
    assert cases["crosspipe-greedy"].get("time") == "0.812000000"
    failure, error = cases["crosspipe-greedy"].find("failure"), cases["interleaved-1f1b"].find("error")
    assert failure is not None
    assert failure.text is not None
    assert "800.000 ms -> 812.000 ms" in failure.text
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("untrusted", "measured untrusted")
    assert error.text is not None
    assert "rank 1 said: <a> & [31m |" in error.text, "without the control character"


CHILDREN = {
    "testsuites": ("testsuite",),
    "testsuite": ("properties", "testcase", "system-out", "system-err"),
    "properties": ("property",),
    "testcase": ("skipped", "error", "failure", "system-out", "system-err"),
}
REQUIRED = {
    "testsuite": ("name", "tests", "failures", "errors", "time", "timestamp", "hostname"),
    "testcase": ("name", "classname", "time"),
    "property": ("name", "value"),
    "failure": ("type",),
    "error": ("type",),
}
"""What the schemas of Ant's task and of CI systems have in common: elements in this order, with these attributes."""


def require_junit(element: ElementTree.Element) -> None:
    order = CHILDREN.get(element.tag, ())
    places = [order.index(child.tag) for child in element]
    assert places == sorted(places), element.tag
    for name in REQUIRED.get(element.tag, ()):
        assert element.get(name) is not None, (element.tag, name)
    for name in ("tests", "failures", "errors"):
        assert int(element.get(name, "0")) >= 0
    for name, form in (("time", r"\d+\.\d+"), ("timestamp", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")):
        assert re.fullmatch(form, element.get(name, "")) or element.get(name) is None
    for child in element:
        require_junit(child)


ODD_LABEL = "a <b> & \"c\" 'd' ]]> \x1b\ufffe é"


def test_junit_is_of_the_structure_that_others_read_whatever_a_label_holds() -> None:
    labels = (ODD_LABEL, "1f1b")
    slower = CheckResult((figures(ODD_LABEL, 0.9), figures("1f1b")), "", ENVIRONMENT)
    nothing = CheckResult((), f"the run ended: {ODD_LABEL}", {})
    told = check_report.CheckReport(
        (checked(slower, *map(figures, labels)), checked(nothing, *map(figures, labels))), False
    )
    root = ElementTree.fromstring(junit(told))
    assert root.tag == "testsuites"
    require_junit(root)
    first, second = root
    assert [case.get("name") for case in first.findall("testcase")] == ["a <b> & \"c\" 'd' ]]>  é", "1f1b"]
    assert (first.get("failures"), first.get("errors")) == ("1", "0")
    assert (second.get("failures"), second.get("errors")) == ("0", "2"), "nothing to compare is no comparison"
    assert 'a &lt;b> &amp; "c"' in check_report.markdown(told)


def test_markdown_has_whole_rows() -> None:
    text = check_report.markdown(mixed())
    assert text.startswith("## Baselines\n\n**OUTSIDE TOLERANCE")
    rows = [line for line in text.splitlines() if line.startswith("| longhaul | ") and "measured" in line]
    assert len(rows) == 3
    assert all(row.replace("\\|", "").count("|") == 9 for row in rows)


def test_json_holds_every_finding() -> None:
    document = check_report.as_document(mixed())
    json.dumps(document, allow_nan=False)
    assert document["within_tolerance"] is False
    found = {f["schedule"]: f for f in document["baselines"][0]["findings"] if f["quantity"] == "measured"}
    assert found["crosspipe-greedy"]["difference"] == pytest.approx(0.012)
    assert found["crosspipe-greedy"]["allowed"] == pytest.approx(40e-6)


def test_values_are_shown_in_the_unit_of_their_quantity() -> None:
    assert check_report.show_value(FigureKind.measured, 1.234567) == "1.23457 s"
    measured = Finding("b", "s", CheckVerdict.same, FigureKind.measured, 0.8, 0.8 - 1.1e-13)
    assert check_report.show_difference(measured) == "0"
    predicted = Finding("b", "s", CheckVerdict.same, FigureKind.predicted, 0.8, 0.8 + 4e-9)
    assert check_report.show_difference(predicted).startswith("+4 ns")


# --- files and commands --------------------------------------------------------------------------


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
