"""Each job of several by itself too: the cases that a plan gets, what they are compared with, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_jobs_results import run, two_cases
from test_network_metric import job, network, planned
from typer.testing import CliRunner

from testbed.cli import app
from testbed.cli.run_tables import jobs_tables
from testbed.errors import BadInput
from testbed.judge.comparison import JobComparison, compare
from testbed.plan.alone import with_alone
from testbed.plan.events import at_work
from testbed.plan.plan import Plan
from testbed.planning import file
from testbed.planning.prediction import iteration_times, predict_jobs

LINE = (
    "name: line\ndatacenters: {a: {nodes: 4}, b: {nodes: 4}}\nlinks: [{between: [a, b], delay: 1 ms, rate: 1 Gbit/s}]\n"
)


def two_jobs() -> Plan:
    shape = network(leaves=2, spines=1, hosts=2, rate="200 Mbit/s", delay="100 us")
    return planned(shape, *(job(name, [f"pod-leaf0/{n}", f"pod-leaf1/{n}"]) for n, name in enumerate(("one", "two"))))


def test_every_case_is_followed_by_each_of_its_jobs_alone() -> None:
    plan = with_alone(two_jobs())
    assert [case.label for case in plan.cases] == ["1f1b", "1f1b, one alone", "1f1b, two alone"]
    whole, *alone = plan.cases
    for number, case in enumerate(alone):
        assert at_work(plan, case) == (number,)
        assert (case.alone_of, case.jobs, case.routes, case.starts_s) == ("1f1b", whole.jobs, whole.routes, ())
        assert iteration_times(plan, case)[0] == pytest.approx(predict_jobs(plan, whole)[number].alone_s, rel=1e-9)
    assert iteration_times(plan, whole)[0] > 1.02 * iteration_times(plan, alone[0])[0]
    file.check(plan, "plan.json")
    assert file.from_json(file.to_json(plan), "plan.json") == plan


def test_a_file_in_which_a_job_alone_is_not_the_case_that_it_is_of_is_refused() -> None:
    plan = with_alone(two_jobs())
    whole, first, second = plan.cases
    for wrong in (
        replace(first, alone_of="gpipe"),
        replace(first, alone=None),
        replace(first, alone="three"),
        replace(first, starts_s=(0.0, 0.5)),
        replace(first, alone_of=None),
    ):
        with pytest.raises(BadInput, match=r"plan\.json: cases"):
            file.check(replace(plan, cases=(whole, wrong, second)), "plan.json")
    with pytest.raises(BadInput, match=r"cases\.0\.alone_of: got '1f1b', expected the label of a case before it"):
        file.check(replace(plan, cases=(first, whole)), "plan.json")


def test_one_job_is_refused_before_anything_starts_and_so_is_an_event(tmp_path: Path) -> None:
    (tmp_path / "line.yaml").write_text(LINE)
    root = Path(__file__).parents[2]
    small = str(root / "workloads/tiny-gpt-pp4.yaml")
    for command in (["run"], ["plan", "-o", str(tmp_path / "plan.json")]):
        done = CliRunner().invoke(app, [command[0], str(tmp_path / "line.yaml"), small, "--alone", *command[1:]])
        assert isinstance(done.exception, BadInput) or done.exit_code == 2
        assert "--alone: option: got '1 job', expected two workloads or more" in f"{done.exception} {done.output}"
    both = [str(tmp_path / "line.yaml"), small, small, "--alone", "--depart", "tiny-gpt-pp4@1"]
    done = CliRunner().invoke(app, ["plan", *both, "-o", str(tmp_path / "plan.json")])
    assert "--depart" in f"{done.exception} {done.output}"
    assert "no --alone" in f"{done.exception} {done.output}"


def test_what_the_others_cost_a_job_is_measured_against_itself_alone() -> None:
    alone = [
        run("wide", "1f1b, wide alone", "1f1b", 40.0, 40.0),
        run("narrow", "1f1b, narrow alone", "1f1b", 30.0, 30.0),
    ]
    marked = [replace(one, beside=replace(one.beside, alone_of="1f1b")) for one in alone if one.beside]
    rows = [row for row in compare([*two_cases(), *marked]) if isinstance(row, JobComparison)]
    assert [row.slowdown_measured for row in rows] == [50 / 40, 60 / 30, None, None, 1.0, 1.0]
    assert [row.measured_alone_s for row in rows] == [40.0, 30.0, None, None, 40.0, 30.0]
    assert [row.speedup_measured for row in rows[4:]] == [1.0, 1.0], "alone, the baseline is 1F1B alone"
    predicted, measured = jobs_tables("jobs", rows, 80)
    assert (predicted.row_count, measured.row_count) == (4, 4)
    assert list(measured.columns[3].cells) == ["+25.0%", "+100.0%", "-", "-"]
    # with events the job by itself had none of them: what they cost is not the others'
    changed = [replace(one, changed=one.label == "1f1b") for one in two_cases()]
    with_events = [row for row in compare([*changed, *marked]) if isinstance(row, JobComparison)]
    assert [row.slowdown_measured for row in with_events[:2]] == [None, None]
    assert [row.measured_alone_s for row in with_events[:2]] == [40.0, 30.0]
    (baseline,) = jobs_tables("jobs", [row for row in rows if "zb-h1" in row.label], 80)
    assert baseline.row_count == 2
