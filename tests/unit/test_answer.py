"""The end of a run, from recorded files: the answer is on an 80 x 24 screen, the rest of it a `report` away."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import run_testbed
from rich.cells import cell_len
from rich.console import Console

from testbed.cli.answer import answer, print_answer
from testbed.judge.comparison import JobComparison, ScheduleComparison, rows_of
from testbed.results.load import Run, load_run
from testbed.thresholds import TIE

RUNS = Path(__file__).parents[1] / "runs"
DEMO, FAILED = RUNS / "demo", RUNS / "failed"
COLUMNS, LINES = 80, 24


def screen(run: Run) -> list[str]:
    """What `make demo` would leave on the screen, its prompt in the last line."""
    stream = io.StringIO()
    print_answer(Console(file=stream, width=COLUMNS), run, Path("results/demo"), pages=1)
    return stream.getvalue().splitlines()


def rows() -> list[ScheduleComparison]:
    return rows_of(load_run(DEMO).comparison)


@pytest.mark.parametrize("directory", [DEMO, FAILED], ids=lambda path: path.name)
def test_the_end_of_a_run_fits_the_screen(directory: Path) -> None:
    lines = screen(load_run(directory))
    assert len(lines) < LINES
    assert max(cell_len(line.rstrip()) for line in lines) <= COLUMNS
    assert sum(line.startswith("┏") for line in lines) == 1, "one table"
    for label in ("gpipe", "1f1b", "zb-h1", "crosspipe-greedy"):
        assert any(label in line for line in lines)
    assert "details: testbed report results/demo --details" in lines


def test_the_answer_comes_last_and_passed_checks_are_a_count() -> None:
    lines = screen(load_run(DEMO))
    (place,) = (number for number, line in enumerate(lines) if line.startswith("fastest: "))
    said = " ".join(line.strip() for line in lines[place:])
    assert said == "fastest: crosspipe-greedy, 622.2 ms, 1.31 x 1f1b; measured order as predicted; all trusted"
    assert "checks: 72 of 72 passed, 2 noted that leave the times right" in lines
    assert not any("slots" in line for line in lines)


def test_failed_checks_stand_out() -> None:
    found = load_run(FAILED)
    said = " ".join(" ".join(screen(found)).split())
    failed = {check["question"] for row in found.comparison["schedules"] for check in row["checks"] if not check["ok"]}
    assert failed
    for question in failed:
        assert f"FAILED {question}: " in said
    assert said.count("FAILED") == len(failed)
    assert said.endswith("NOT trusted: all schedules")


def test_many_schedules_only_lengthen_the_table() -> None:
    many = [row | {"label": f"{row['label']} {n}"} for n in range(8) for row in load_run(DEMO).comparison["schedules"]]
    found = load_run(DEMO)
    lines = screen(replace(found, comparison=found.comparison | {"schedules": many}))
    assert len(lines) == len(screen(found)) + 7 * 4 + 2, "a line for each, and two more of equally fast ones at the end"
    assert lines[-1].endswith("all trusted")


# --- the sentence --------------------------------------------------------------------------------


def test_of_a_job_that_adapted_the_answer_is_what_that_brought() -> None:
    row: dict[str, Any] = {"measured_s": 0.8, "never_predicted_s": 1.0, "oracle_predicted_s": 0.75, "swapped_to": None}
    row |= {"oracle": "1f1b", "oracle_swaps": False, "swap_took_s": None}
    found = load_run(DEMO)
    adapted = replace(found, comparison=found.comparison | {"adaptation": {"iterations": [row, row]}})
    said = " ".join(" ".join(screen(adapted)).split())
    assert said.endswith("with 0 swaps; 80% of its gain, swaps paid for; all trusted")
    assert "2 iterations with 0 swaps: 1.6 s; never adapting (predicted): 2.0 s (-20.0%)" in said
    assert "fastest" not in said


def test_what_is_not_trusted_is_not_the_fastest() -> None:
    *others, fastest = rows()
    said = answer([*others, replace(fastest, trusted=False)], TIE)
    assert said.startswith("fastest of the 3 trusted: zb-h1, 652.6 ms, 1.24 x 1f1b; ")
    assert said.endswith("; NOT trusted: crosspipe-greedy")


def test_what_never_varies_may_be_the_fastest_by_its_95th_percentile() -> None:
    """Of cases of a training that goes on with other schedules, events touch some."""

    def in_twenty(row: ScheduleComparison, factor: float) -> ScheduleComparison:
        return replace(row, measured_p95_s=factor * row.measured_s, predicted_p95_s=factor * row.predicted_s)

    varying = [in_twenty(row, 1.2) for row in rows()]
    assert "by 95th percentile" not in answer(varying, TIE)
    *others, fastest = varying
    steady = in_twenty(fastest, 1.0)
    assert not steady.varies
    assert "by 95th percentile" not in answer([*others, steady], TIE)
    first, second, *_ = varying
    close = replace(second, measured_s=0.99 * first.measured_s)
    assert "by 95th percentile: gpipe, 699.7 ms" in answer([in_twenty(first, 1.0), close], TIE)


def test_only_a_job_that_is_slowed_is_said_to_be() -> None:
    one, *_ = rows()
    alone: dict[str, Any] = {"start_s": 0.0, "predicted_alone_s": one.predicted_s, "slowdown_predicted": 1.0}
    jobs = [JobComparison(**vars(one), job=name, **alone) for name in ("a", "b")]
    assert "no job slowed by the others (predicted)" in answer(jobs, TIE)
    slowed = [*jobs[:1], replace(jobs[1], slowdown_predicted=1.05)]
    assert "most slowed by the others: b under gpipe, +5.0% (predicted)" in answer(slowed, TIE)


def test_an_order_that_was_not_predicted_is_said() -> None:
    *others, fastest = rows()
    said = answer([*others, replace(fastest, measured_s=0.66)], TIE)
    assert "fastest: zb-h1, 652.6 ms" in said
    assert "measured order NOT as predicted in 1 of 6 pairs" in said


def test_equally_fast_ones_are_all_named() -> None:
    first, second, *_ = rows()
    said = answer([first, replace(second, measured_s=first.measured_s * 1.0005)], TIE)
    assert said.startswith("fastest: gpipe, 1f1b, 699.7 ms")


def test_of_one_schedule_nothing_is_the_fastest() -> None:
    _, second, *_ = rows()
    assert answer([second], TIE) == "1f1b: 812.4 ms, predicted 806.2 ms (+0.77%); trusted"
    covered = replace(second, covered=False, left_out=["loss is not in the model"])
    assert answer([covered], TIE).endswith("; trusted, as measurements: the model lacks what the plan asks for")


def test_what_an_event_cost_is_part_of_the_answer() -> None:
    _, one, *_ = rows()
    stays = {"job": "narrow", "before_s": 0.2, "after_s": 0.201}
    slower = {"job": "wide", "before_s": 0.2344, "after_s": 0.277}
    gone = {"job": "first", "before_s": 0.2341, "after_s": None}
    said = answer([one], TIE, [{"label": "1f1b without first", "iterations": [gone, stays, slower]}])
    assert "; 1f1b without first: 234.4 ms -> 277.0 ms (wide); trusted" in said
    assert "->" not in answer([one], TIE, [{"label": "1f1b", "iterations": [gone]}])


def test_an_incomplete_run_says_so_in_its_last_words(tmp_path: Path) -> None:
    document = json.loads((DEMO / "comparison.json").read_text())
    document |= {"complete": False, "schedules": document["schedules"][:2]}
    (tmp_path / "comparison.json").write_text(json.dumps(document))
    (tmp_path / "manifest.json").write_text((DEMO / "manifest.json").read_text())
    lines = screen(load_run(tmp_path))
    assert "this run is incomplete: 2 of 4 schedules finished, not zb-h1, crosspipe-greedy" in lines
    assert " ".join(lines).endswith("; incomplete")


# --- the details ---------------------------------------------------------------------------------


def reported(*options: str) -> str:
    done = run_testbed("report", DEMO, *options, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_report_is_the_answer_and_each_part_stands_for_itself() -> None:
    whole = reported()
    assert [line.rstrip() for line in whole.splitlines()][-2:] == [
        line.rstrip() for line in screen(load_run(DEMO))[-2:]
    ]
    parts: dict[str, tuple[str, ...]] = {
        "--memory": ("memory of the fullest rank", "zb-h1: rank 3 holds 1.5% more than its limit"),
        "--messages": ("messages, measured - predicted", "2 -> 3"),
        "--checks": ("bytes off the plan, of allowed", "a lossless network loses nothing", "noted, which leaves"),
    }
    everything = reported("--details")
    assert everything.endswith(whole)
    times = ("with what this machine adds", "bubble m/p", "+- IQR", "measured ranking: as predicted in all 6 pairs")
    for said in times:
        assert said in everything
        assert said not in whole
    for option, words in parts.items():
        part = reported(option)
        for said in words:
            assert said in " ".join(part.split())
            assert said not in " ".join(whole.split())
        assert part in everything
        assert "fastest" not in part
    both = reported("--memory", "--checks")
    assert both == reported("--memory") + reported("--checks")


def test_a_report_as_json_is_the_file() -> None:
    written: dict[str, Any] = json.loads((DEMO / "comparison.json").read_text())
    assert json.loads(reported("--json")) == written
