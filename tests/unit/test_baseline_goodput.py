"""A baseline of a job whose workers fail: what recovering costs is kept, and a slower restart makes the check fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.baseline.regression import CheckResult, CheckVerdict, Figures, judge
from testbed.baseline.tolerance import FigureKind, Mode, default_tolerances
from testbed.errors import ExitCode

FAILING = ("--checkpoint", "every=2,save=100 ms,restart=2 s", "--failure", "rank 2 at 1.3 s", "--iterations", "5")


def saved(directory: Path, *words: str) -> Path:
    """The plan of a baseline of a prediction."""
    planned = run_testbed(
        "plan", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", *words, "-o", "plan.json", directory=directory
    )
    assert planned.returncode == 0, planned.stderr
    done = run_testbed(
        "baseline", "save", "mine", "plan.json", "--predict-only", "--baselines", "kept", directory=directory
    )
    assert done.returncode == 0, done.stderr
    return directory / "kept/mine/plan.json"


def check(directory: Path, *words: str) -> tuple[int, str]:
    done = run_testbed("baseline", "check", "--baselines", "kept", *words, directory=directory, COLUMNS="80")
    return done.returncode, done.stdout


def test_a_longer_restart_is_found(tmp_path: Path) -> None:
    plan = saved(tmp_path, *FAILING)
    (kept,) = json.loads((plan.parent / "comparison.json").read_text())["schedules"]
    assert 0.3 < kept["goodput_predicted"] < 0.9
    code, said = check(tmp_path)
    assert code == ExitCode.OK, said
    document = json.loads(plan.read_text())
    document["recovery"]["checkpoints"]["restart_s"] = 2.2
    plan.write_text(json.dumps(document))
    code, said = check(tmp_path)
    assert code == ExitCode.REGRESSION
    (row,) = [line.split() for line in said.splitlines() if "goodput" in line and "slower" in line]
    assert (row[0], row[1], row[-1]) == ("1f1b", "goodput", "slower")
    assert float(row[2].rstrip("%")) == pytest.approx(100 * kept["goodput_predicted"], abs=1e-3)
    assert max(map(len, said.splitlines())) <= 80
    code, said = check(tmp_path, "--json")
    (finding,) = json.loads(said)["baselines"][0]["findings"]
    assert (finding["quantity"], finding["verdict"], finding["difference"] < 0) == ("goodput", "slower", True)


def test_a_job_that_cannot_fail_has_none(tmp_path: Path) -> None:
    plan = saved(tmp_path)
    text = (plan.parent / "comparison.json").read_text()
    assert "goodput" not in text
    assert "goodput" not in (plan.parent / "baseline.json").read_text()
    code, said = check(tmp_path)
    assert code == ExitCode.OK
    assert "goodput" not in said


@pytest.mark.parametrize("mode", list(Mode))
def test_measured_goodput_is_compared_in_percentage_points(mode: Mode) -> None:
    bands = default_tolerances(mode, paced=True, recovers=True)
    allowed = bands[FigureKind.goodput].allowed(0.7)
    assert FigureKind.goodput not in default_tolerances(mode, paced=True)

    def figures(goodput: float) -> Figures:
        measured = None if mode is Mode.predict else 1.0
        error = None if mode is Mode.predict else 0.0
        foretold, found = (goodput, None) if mode is Mode.predict else (0.7, goodput)
        return Figures(
            "1f1b",
            1.0,
            0.1,
            2.0,
            remade_s=1.0,
            measured_s=measured,
            error=error,
            bubble_measured=None if measured is None else 0.1,
            peak_in_flight_measured=None if measured is None else 2.0,
            goodput_predicted=foretold,
            goodput_measured=found,
        )

    def verdicts(goodput: float) -> list[CheckVerdict]:
        return [one.verdict for one in judge("mine", [figures(0.7)], CheckResult((figures(goodput),)), bands)]

    assert verdicts(0.7 - 0.9 * allowed) == [CheckVerdict.same]
    assert verdicts(0.7 - 1.1 * allowed - 1e-12) == [CheckVerdict.slower]
    assert verdicts(0.7 + 1.1 * allowed + 1e-12) == [CheckVerdict.faster]
