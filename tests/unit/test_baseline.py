"""Baselines: what counts as slower, faster or less true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_baselines import CONTROLLED, ENVIRONMENT, REAL, VIRTUAL, checked, figures, planned_with, verdicts, write_run

from testbed.baseline import check_report, store
from testbed.baseline.check import on_one_text
from testbed.baseline.environment import differences
from testbed.baseline.junit import junit
from testbed.baseline.measure import Measurement, measure
from testbed.baseline.regression import CheckResult, CheckVerdict, Figures, is_regression, judge
from testbed.baseline.tolerance import FigureKind, Mode, default_tolerances, describe, from_document
from testbed.errors import BadInput, Interrupted, RunFailed
from testbed.planning.resolve import with_clock
from testbed.progress import Lines
from testbed.vm import command
from testbed.vm.command import GuestTraining


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
