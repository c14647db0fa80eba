"""Plans and a run that an earlier version wrote, with its plan.json of format 1: read, predicted, reported, kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import run_testbed

from testbed.cli.report import judged_again
from testbed.errors import BadInput, ExitCode
from testbed.plan.events import at_work, away, lost
from testbed.plan.timeline import JobArrives, JobDeparts, LinkLost, Moment
from testbed.planning import file
from testbed.results.load import load_run
from testbed.results.run_files import RunFiles
from testbed.routing.rerouting import rerouted

RECORDED = Path(__file__).parents[1] / "recorded"
EVENTS, ALONE = RECORDED / "format-1-events.json", RECORDED / "format-1-alone.json"
RUN, PLAIN_RUN = RECORDED / "format-1-run", RECORDED / "format-1-plain-run"
"""On the virtual clock, one of which lost a link; without what they said of packages and lab, and the second without a
detour that nothing took."""
JOBS_RUN, FORMAT_3_RUN = RECORDED / "format-2-run", RECORDED / "format-3-run"
"""On the real clock: of two jobs beside each other and each by itself, on a machine too busy to be trusted; of one."""
PREDICTED_S = {
    EVENTS: [
        [0.23436789128592944],
        [0.2343678912966387, 0.26655663997316453],
        [0.27695069129684435, 0.30494815997790414],
        [0.26655663997856344],
        [0.26655663997856344],
    ],
    ALONE: [[0.33662765129798605, 0.3645485599790497], [0.2649386912894739], [0.26655663997856344]],
}
"""By the version that wrote them: per case, of every job at work."""


@pytest.mark.parametrize("path", [EVENTS, ALONE])
def test_cases_are_without_what_the_file_says(path: Path) -> None:
    plan, written = file.read(path), json.loads(path.read_text())
    assert written["format"] == 1
    assert plan.format == 3
    for case, before in zip(plan.cases, written["cases"], strict=True):
        assert [*lost(plan, case)] == before.get("lost", [])
        assert [*away(plan, case)] == before.get("away", [])
        assert (case.continues and case.continues.after) == before.get("event", {}).get("after")
    again = file.to_json(plan)
    assert file.from_json(again, "plan.json") == plan
    assert json.loads(again)["format"] == 3


def test_costs_of_a_plan_of_format_2_have_the_names_of_this_version() -> None:
    written = json.loads((JOBS_RUN / "plan.json").read_text())
    assert written["format"] == 2
    costs, before = file.read(JOBS_RUN).host_costs, written["host_costs"]
    assert (costs.stagger_s, costs.shared_stagger_s_per_byte) == (before["turn_s"], before["shared_turn_s_per_byte"])
    assert file.read(FORMAT_3_RUN).host_costs.tie_s == 20e-6


def test_what_cases_differ_in_is_what_happened() -> None:
    plan = file.read(EVENTS)
    assert plan.events == (
        JobArrives("second", Moment(1)),
        LinkLost("pod-spine1", Moment(3)),
        JobDeparts("first", Moment(4)),
        LinkLost("pod-spine2", Moment(5)),
    )
    for before, case in zip(plan.cases, plan.cases[1:], strict=False):
        assert rerouted(plan, before, case) == case.routes
    assert [at_work(file.read(ALONE), case) for case in file.read(ALONE).cases] == [(0, 1), (0,), (1,)]


@pytest.mark.parametrize("path", [EVENTS, ALONE])
def test_predictions_are_those_of_the_version_that_wrote_it(path: Path) -> None:
    done = run_testbed("predict", path, "--json")
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout)["cases"]
    assert [[job["predicted_s"] for job in case["jobs"]] for case in cases] == PREDICTED_S[path]


def test_a_recorded_run_with_an_event_is_reported_and_predicted() -> None:
    assert json.loads((RUN / "plan.json").read_text())["format"] == 1
    written = json.loads((RUN / "comparison.json").read_text())
    done = run_testbed("report", RUN, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["schedules"], told["events"]) == (written["schedules"], written["events"])
    done = run_testbed("predict", RUN, "--json")
    assert [one["predicted_s"] for one in json.loads(done.stdout)["schedules"]] == [
        one["predicted_s"] for one in written["schedules"]
    ]


@pytest.mark.parametrize(("directory", "version"), [(RUN, 2), (JOBS_RUN, 2), (FORMAT_3_RUN, 3)])
def test_a_recorded_run_of_an_earlier_format_is_judged_as_it_was(directory: Path, version: int) -> None:
    assert json.loads((directory / "manifest.json").read_text())["format"] == version
    assert RunFiles(directory).baseline(load_run(directory).schedules[0], 0) or directory == RUN, "real clock"
    written = load_run(directory).comparison
    again, _ = judged_again(directory, written)
    for row, before in zip(again["schedules"], written["schedules"], strict=True):
        assert (row["trusted"], row["reasons"]) == (before["trusted"], before["reasons"])
        now = {check["question"]: check for check in row["checks"]}  # this version may ask more, and say more of each
        assert [{key: now[check["question"]][key] for key in check} for check in before["checks"]] == before["checks"]
    assert all(row["trusted"] for row in written["schedules"]) == (directory != JOBS_RUN)


def test_a_recorded_run_is_kept_as_a_baseline(tmp_path: Path) -> None:
    assert json.loads((PLAIN_RUN / "plan.json").read_text())["format"] == 1
    assert run_testbed("baseline", "save", "kept", "--run", PLAIN_RUN, "--baselines", tmp_path).returncode == 0
    assert file.read(tmp_path / "kept") == file.read(PLAIN_RUN)
    checked = run_testbed("baseline", "check", "--predict-only", "--baselines", tmp_path, "--json")
    assert checked.returncode in (ExitCode.OK, ExitCode.REGRESSION), checked.stderr
    (finding,) = json.loads(checked.stdout)["baselines"][0]["findings"]
    # the engine's costs are this version's, not those of the one that ran: some microseconds a message
    assert finding["now"] == pytest.approx(finding["before"], rel=1e-3)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda plan: plan["cases"][3].update(lost=[]), "expected the same schedules, starts and losses as the case"),
        (lambda plan: plan["cases"][0].update(lost=["pod-spine0"]), "expected a case before it that it goes on from"),
        (lambda plan: plan["cases"][4].update(away=[]), "expected a job that is there once"),
        (lambda plan: plan["cases"][1].update(away=["second"]), "expected something that is lost, arrives or departs"),
        (lambda plan: plan["cases"][1].update(away="second"), "cases.1.away: got 'second', expected a list"),
        (lambda plan: plan["cases"].append(plan["cases"][0] | {"away": []}), "the same events in every training"),
        (lambda plan: plan["network"].update(events=[1]), "network.events: got .*, expected an empty list"),
        (lambda plan: plan.update(events=[]), "events: got .*, expected no such field in format 1"),
        (lambda plan: plan.update(cases=3), "cases: got 3, expected a list"),
        (lambda plan: plan.pop("network"), "network: got 'nothing', expected this field"),
    ],
)
def test_a_damaged_file_of_format_1_is_one_clear_line(damage: Callable[[dict[str, Any]], Any], expected: str) -> None:
    document = json.loads(EVENTS.read_text())
    damage(document)
    with pytest.raises(BadInput, match=rf"plan.json: .*({expected})"):
        file.from_json(json.dumps(document), "plan.json")
