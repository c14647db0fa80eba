"""The comparison of several jobs: each job against its own baseline and predictions, written, read and shown."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from data_format import documented
from rich.console import Console
from test_compare import measured

from testbed.cli.answer import print_answer
from testbed.cli.run_tables import ReportPart, details
from testbed.errors import BadInput
from testbed.judge.comparison import (
    Beside,
    JobComparison,
    MeasuredCase,
    ScheduleComparison,
    as_document,
    compare,
    same_ranking,
)
from testbed.results.contents import comparison_of
from testbed.results.load import Run
from testbed.results.recheck import name_of

JOBS = [
    {"name": "wide", "first_rank": 0, "ranks": 4, "workload_seed": 1},
    {"name": "narrow", "first_rank": 4, "ranks": 4, "workload_seed": 2},
]
FACTS = {
    "name": "wide + narrow on a network",
    "shaper": "netem",
    "transport": "otn-lossless",
    "clock": "virtual",
    "complete": True,
    "ranking_as_predicted": True,
    "jobs": JOBS,
}


def run(job: str, label: str, name: str, seconds: float, alone_s: float) -> MeasuredCase:
    return replace(measured(name, seconds), label=label, beside=Beside(job, 1e-4, alone_s))


def two_cases() -> list[MeasuredCase]:
    return [
        run("wide", "1f1b", "1f1b", 50.0, 49.0),
        run("narrow", "1f1b", "1f1b", 60.0, 24.5),
        run("wide", "zb-h1", "zb-h1", 40.0, 41.0),
        run("narrow", "zb-h1", "zb-h1", 41.0, 20.5),
    ]


def test_every_job_is_compared_with_its_own_baseline_and_with_itself_alone() -> None:
    rows = compare(two_cases())
    assert all(isinstance(row, JobComparison) for row in rows)
    assert [row.speedup_measured for row in rows] == [1.0, 1.0, 50 / 40, 60 / 41]
    assert [row.slowdown_predicted for row in rows if isinstance(row, JobComparison)] == [1.0, 2.0, 1.0, 2.0]
    # what job takes longer is no ranking
    assert same_ranking(rows)
    assert not same_ranking([replace(rows[0], measured_s=30.0), *rows[1:]])
    more = {one.name for one in fields(JobComparison)} - {one.name for one in fields(ScheduleComparison)}
    assert more == documented("An entry of `schedules` in comparison.json: of several jobs")


def test_only_cases_with_the_same_jobs_are_held_against_each_other() -> None:
    """A job that arrives slows the other down: neither schedule is worse for it."""
    before = [run("wide", "1f1b", "1f1b", 50.0, 49.0), run("wide", "zb-h1", "zb-h1", 40.0, 41.0)]
    after = [
        run(job, f"{name} with narrow", name, seconds, alone_s)
        for name, seconds, alone_s in (("1f1b", 100.0, 49.0), ("zb-h1", 60.0, 41.0))
        for job in ("wide", "narrow")
    ]
    rows = compare([*before, *after])
    wide = [row for row in rows if isinstance(row, JobComparison) and row.job == "wide"]
    assert [row.speedup_measured for row in wide] == [1.0, 50 / 40, 1.0, 100 / 60]
    # measured after it arrived, zb-h1 takes longer than 1f1b before: as predicted of neither
    assert wide[3].predicted_s < wide[0].predicted_s
    assert wide[3].measured_s > wide[0].measured_s
    assert same_ranking(rows)


def document() -> dict[str, Any]:
    return json.loads(json.dumps(as_document(FACTS, compare(two_cases()))))  # type: ignore[no-any-return]


def test_it_is_read_as_it_was_written_and_a_job_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(document()))
    found = comparison_of(path)
    assert found == document()
    assert Run({}, found, complete=True, has_traces=False).schedules == ["1f1b", "zb-h1"]
    assert [name_of(row) for row in found["schedules"]][:2] == ["1f1b: wide", "1f1b: narrow"]
    found["schedules"][1]["job"] = "other"
    path.write_text(json.dumps(found))
    with pytest.raises(BadInput, match=r"schedules\.1\.job: got 'other', expected one of wide, narrow"):
        comparison_of(path)
    del found["jobs"]
    path.write_text(json.dumps(found))
    with pytest.raises(BadInput, match=r"schedules\.0\..*: .* expected fields of this version"):
        comparison_of(path)


def test_a_screen_of_80_columns_shows_what_jobs_cost_each_other_and_each_of_them(tmp_path: Path) -> None:
    rows = document()
    rows["schedules"][1] |= {"trusted": False, "reasons": ["it was not so"]}
    screen = io.StringIO()
    console = Console(width=80, file=screen)
    for one in details(rows, set(ReportPart), console.width):
        console.print(one)
    print_answer(console, Run({}, rows, complete=True, has_traces=False), tmp_path, pages=0)
    said = screen.getvalue()
    assert max(len(line) for line in said.splitlines() if str(tmp_path) not in line) <= 80
    assert "…" not in said
    assert "+100.0%" in said
    for title in ("wide, beside the others", "narrow, beside the others", "1f1b: narrow untrusted: it was not so"):
        assert title in said
