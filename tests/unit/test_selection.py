"""Which schedules a plan is measured with: the best of all, those that do not fit, those of an earlier run."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.cli import main
from testbed.errors import BadInput, DoesNotFit
from testbed.model.compile import announce
from testbed.pipeline.problem import Problem, uniform
from testbed.pipeline.validate import InvalidSchedule
from testbed.plan.host_costs import STAGGER_S
from testbed.plan.plan import Plan
from testbed.planning.resolve import load_plan
from testbed.planning.schedule_comparison import compare_schedules
from testbed.planning.schedules import Selection, candidates, choose, make, ranked, with_selected
from testbed.schedule import evaluation, hints
from testbed.schedule.evaluation import (
    PredictedSchedule,
    ScheduleRequest,
    generate_each,
    in_kept_process,
    kept_processes,
)
from testbed.schedule.family import Family
from testbed.schedule.one_f_one_b import one_f_one_b
from testbed.schedule.schedule_file import RecordedSchedule
from testbed.spec.choice import ScheduleChoice

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
BEST = ScheduleChoice(schedule="best")
QUICK_SEARCH = {"schedule": "search", "evaluations": 2}
"""Beside `best`: it would search for seconds otherwise."""

BROKEN = (
    "from dataclasses import replace\n"
    "from testbed.schedule.one_f_one_b import one_f_one_b\n"
    "def broken(problem):\n"
    "    good = one_f_one_b(problem)\n"
    "    return replace(good, rows=(good.rows[0][:-1], *good.rows[1:]))\n"
)


def plan_of(schedules: list[Any], directory: Path, *settings: str) -> Plan:
    document = yaml.safe_load(PP4.read_text()) | {"schedules": schedules}
    (directory / "job.yaml").write_text(yaml.safe_dump(document))
    return load_plan(LONGHAUL, directory / "job.yaml", settings=settings)


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of the command line, called in this process."""
    monkeypatch.setattr(sys, "argv", ["testbed", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_best_makes_every_schedule_once_and_says_where_it_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()
    real = evaluation.generate_choice  # type: ignore[attr-defined]

    def counted(choice: ScheduleChoice, problem: Problem, watch: Any = None) -> Any:
        made[choice.schedule] += 1
        return real(choice, problem, watch)

    monkeypatch.setattr(evaluation, "generate_choice", counted)
    plan = plan_of(["best", "zb-v", QUICK_SEARCH], tmp_path)
    selected = make(plan, choose(plan))
    assert set(made.values()) == {1}, made
    first, second, third = selected.choices
    assert (first.label, first.schedule, second.label, third.label) == ("best zb-v", "zb-v", "zb-v", "search")
    best = selected.made["best zb-v"]
    assert best.schedule.name == "best zb-v"
    assert best.remarks[0].startswith("zb-v, the fastest of 9 that fit; next ")
    (case, *_) = with_selected(plan, [selected]).cases
    assert case.jobs[0].remarks == best.remarks


def test_best_keeps_its_label_and_its_memory(tmp_path: Path) -> None:
    plan = plan_of([{"schedule": "best", "label": "ours", "memory": 8}, QUICK_SEARCH], tmp_path)
    selected = make(plan, choose(plan, ["ours"]))
    (chosen,) = selected.choices
    assert (chosen.label, chosen.memory) == ("ours", 8)
    tight = ranked(plan, BEST)
    assert "zb-h2" in tight.left_out
    assert "zb-h2" in [one.choice.label for one in ranked(plan, chosen).found]


def test_best_has_no_other_options(tmp_path: Path) -> None:
    expected = r"schedules\.0\.extra: got 3, expected an option of best \(memory, label, robust\)"
    with pytest.raises(BadInput, match=expected):
        plan_of([{"schedule": "best", "extra": 3}], tmp_path)


def test_best_of_nothing_is_a_misfit_with_a_reason(tmp_path: Path) -> None:
    plan = plan_of([{"schedule": "best", "memory": 0.5}, "1f1b"], tmp_path)
    selected = make(plan, choose(plan))
    assert list(selected.made) == ["1f1b"]
    assert "room for one of 14 schedules" in selected.left_out["best"]
    with pytest.raises(DoesNotFit, match="room for one of 14"):
        make(plan, choose(plan, ["best"]))


def test_best_needs_times(tmp_path: Path) -> None:
    plan = plan_of(["best"], tmp_path, "pacing=none")
    with pytest.raises(BadInput, match="pacing: got 'none', expected times for F, I and W"):
        make(plan, choose(plan))


def test_a_misfit_is_left_out_with_file_field_and_reason(tmp_path: Path) -> None:
    plan = plan_of(["gpipe", {"schedule": "zb-h2", "memory": 5}, "1f1b"], tmp_path)
    made = make(plan, choose(plan), source="job.yaml")
    assert list(made.made) == ["1f1b"]
    assert made.left_out["gpipe"].startswith("job.yaml: memory: schedule gpipe: rank 0, action 4: got 0F4, ")
    assert made.left_out["zb-h2"].startswith("job.yaml: schedules.1.memory: schedule zb-h2: ")
    whole = with_selected(plan, [made])
    assert [case.label for case in whole.cases] == ["1f1b"]
    assert whole.left_out == made.left_out
    with pytest.raises(DoesNotFit, match="2 schedules do not fit"):
        make(plan, choose(plan), strict=True)


def test_an_unpaced_misfit_is_known_before_the_run(tmp_path: Path) -> None:
    plan = plan_of(["gpipe", "1f1b", "zb-v"], tmp_path, "pacing=none", "model.layers=4")
    selected = make(plan, choose(plan))
    assert (list(selected.left_out), selected.made) == (["gpipe", "zb-v"], {})
    assert [choice.label for choice in selected.fitting] == ["1f1b"]


@pytest.mark.parametrize("command", [("predict",), ("schedule", "compare"), ("schedule", "show")])
def test_commands_leave_out_and_are_strict(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of(["gpipe", "1f1b"], tmp_path)
    asked = (*command, LONGHAUL, tmp_path / "job.yaml", "--schedule", "gpipe")
    assert ended(monkeypatch, *asked) == 2
    assert "job.yaml: memory: schedule gpipe" in capsys.readouterr().err
    assert ended(monkeypatch, *asked, "--schedule", "1f1b") == 0
    assert "left out: " in capsys.readouterr().out
    assert ended(monkeypatch, *asked, "--schedule", "1f1b", "--strict") == 2
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 1


def test_what_is_left_out_is_in_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of(["gpipe", "geopipe"], tmp_path)
    assert ended(monkeypatch, "predict", LONGHAUL, tmp_path / "job.yaml", "--json", "-q") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["left_out"]) == ["gpipe"]
    (row,) = document["schedules"]
    assert "memory allows 0 of 1 extra warm-up forwards" in row["remarks"][0]


def test_a_generators_mistake_is_no_misfit(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    plan = plan_of(["1f1b", "mine.py:broken", QUICK_SEARCH], tmp_path)
    for attempt in (
        lambda: ranked(plan, BEST),
        lambda: make(plan, choose(plan)),
        lambda: compare_schedules(plan, choose(plan)),
    ):
        with pytest.raises(BadInput, match=r"schedule broken: rank 0: .* expected F and B") as caught:
            attempt()
        assert not isinstance(caught.value, DoesNotFit)


def test_a_mistaken_hint_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(problem: Problem) -> Any:
        good = one_f_one_b(problem)
        return replace(good, rows=(good.rows[0][:-1], *good.rows[1:]))

    monkeypatch.setattr(hints, "_known", lambda problem: (broken,))
    with pytest.raises(InvalidSchedule):
        hints.best_hint(uniform(2, 2), time_limit_s=0.1)


def test_kept_schedules_that_nobody_asked_for_are_refused(tmp_path: Path) -> None:
    plan = plan_of(["1f1b", "zb-h1"], tmp_path)
    made = make(plan, choose(plan)).made
    kept = {label: RecordedSchedule(one.schedule.rows, None) for label, one in made.items()}
    assert list(make(plan, choose(plan, ["1f1b"]), kept).made) == ["1f1b"], "the workload has the other one, too"
    with pytest.raises(BadInput, match=r"--schedules-from: schedule: got 'ours', expected one of .* \(1f1b, zb-h1\)"):
        make(plan, choose(plan), {**kept, "ours": kept["1f1b"]})


def test_a_kept_best_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(["best", QUICK_SEARCH], tmp_path)
    first = make(plan, choose(plan, ["best"]))
    (label,) = first.made
    monkeypatch.setattr(evaluation, "generate_choice", None)  # nothing is generated
    again = make(plan, choose(plan, ["best"]), {label: RecordedSchedule(first.made[label].schedule.rows, None)})
    assert (again.choices, again.made[label].schedule) == (first.choices, first.made[label].schedule)


def test_processes_make_what_this_one_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "WORTH_PROCESSES", 0)
    problem = uniform(4, 8, delay_s=1.0, cuts=(1,), memory=4)
    names = ("gpipe", "1f1b", "crosspipe-greedy")
    tasks = [ScheduleRequest(ScheduleChoice(schedule=name), problem) for name in names]
    alone, apart = generate_each(tasks, cores=1), generate_each(tasks, cores=2)
    assert alone == apart
    assert [isinstance(one, PredictedSchedule) for one in apart] == [False, True, True]


def test_processes_are_kept_within_a_block_and_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "WORTH_PROCESSES", 0)
    problem, before = uniform(4, 8, delay_s=1.0, cuts=(1,), memory=4), multiprocessing.active_children()
    tasks = [ScheduleRequest(ScheduleChoice(schedule=name), problem) for name in ("1f1b", "crosspipe-greedy")]

    def twice() -> list[set[int | None]]:
        found = []
        for _ in range(2):
            generate_each(tasks, cores=2)
            found.append({process.pid for process in multiprocessing.active_children() if process not in before})
        return found

    assert twice() == [set(), set()]
    with kept_processes():
        first, second = twice()
    assert len(first) == 1, "this process makes its share"
    assert first == second
    assert multiprocessing.active_children() == before


def test_a_process_that_does_not_end_is_ended_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_ENDS_S", 0.1)
    before, began = set(multiprocessing.active_children()), time.monotonic()
    with evaluation._processes(1) as pool:
        assert pool is not None
        pool.submit(time.sleep, 600)
        (ours,) = set(multiprocessing.active_children()) - before
        others = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
        others.start()
    try:
        assert not ours.is_alive()
        assert others.is_alive()
    finally:
        others.kill()
        others.join()
    assert set(multiprocessing.active_children()) == before
    assert time.monotonic() - began < 300


def test_what_runs_compiled_is_called_where_that_is_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a kept process if there is one, in this one if not; a block within a block has its processes."""
    monkeypatch.setattr(evaluation, "WORTH_PROCESSES", 0)
    problem = uniform(4, 8, delay_s=1.0, cuts=(1,), memory=4)
    tasks = [ScheduleRequest(ScheduleChoice(schedule=name), problem) for name in ("1f1b", "crosspipe-greedy")]
    with kept_processes():
        assert in_kept_process(_own_number, 1) == (os.getpid(), 1), "none has been asked for"
        with kept_processes():
            generate_each(tasks, cores=2)
        kept = {process.pid for process in multiprocessing.active_children()}
        number, argument = in_kept_process(_own_number, 2)
        assert (number in kept, argument) == (True, 2)
    assert in_kept_process(_own_number, 3) == (os.getpid(), 3)


def _own_number(argument: int) -> tuple[int, int]:
    return os.getpid(), argument


REPLICAS = {
    "name": "two-pipelines",
    "datacenters": {name: {"nodes": 2} for name in "abcd"},
    "links": [
        {"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"},
        {"between": ["b", "c"], "delay": "1 ms", "rate": "10 Gbit/s"},
    ],
}
NEAR, FAR = ["a/0", "a/1", "b/0", "b/1"], ["c/0", "c/1", "d/0", "d/1"]


@pytest.mark.parametrize(
    "way", [{"delay": "1.1 ms"}, {"forward": {"delay": "1 ms"}, "reverse": {"delay": "300 ms"}}, {"delay": "200 ms"}]
)
def test_the_order_of_replicas_does_not_matter(way: dict[str, Any], tmp_path: Path) -> None:
    """Neither where delays differ by little, nor on the way back only, nor for what looks at the links."""
    far = {"between": ["c", "d"], "rate": "1 Gbit/s", **way}
    (tmp_path / "net.yaml").write_text(yaml.safe_dump({**REPLICAS, "links": [*REPLICAS["links"], far]}))
    found = []
    for first, second in ((NEAR, FAR), (FAR, NEAR)):
        document = yaml.safe_load(PP4.read_text()) | {
            "schedules": ["1f1b", "geopipe", "crosspipe-greedy"],
            "memory": 12,
            "parallelism": {"pipeline": 4, "data": 2},
            "placement": first,
            "data_parallel": {"replicas": [second], "parameters": "1 kB"},
        }
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(document))
        plan = load_plan(tmp_path / "net.yaml", tmp_path / "job.yaml")
        found.append({one.choice.label: one.makespan_s for one in candidates(plan, choose(plan)).found})
    # their eight ranks begin one after the other, in that order
    assert found[0] == pytest.approx(found[1], rel=0, abs=8 * STAGGER_S)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0F0,4F0,4B0,0B0\n1F0,1B0\n2F0,2B0\n3F0,3B0\n", "stages per rank: got '2, 1, 1, 1', expected as many on"),
        ("0F0,0B0\n1F0,1B0\n", "parallelism.pipeline: got 4, expected 2, the ranks of the schedule"),
        ("".join(f"{s}F0,{s}B0\n" for s in range(5)), "parallelism.pipeline: got 4, expected 5, the ranks"),
    ],
)
def test_a_csv_for_another_pipeline_is_refused(
    text: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    csv = tmp_path / "mine.csv"
    csv.write_text(text)
    asked = ("schedule", "validate", LONGHAUL, PP4, csv, "--set", "microbatches=1")
    assert ended(monkeypatch, *asked) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {csv}: ")
    assert expected in said


@pytest.mark.parametrize(
    "settings",
    [
        {"pacing": {"F": "20 ms", "I": "20 ms", "W": "20 ms", "factors": [[1, 1, 1, 1], [1, 1.5, 1, 1]]}},
        {"pacing": {"F": {"median": "20 ms", "p95": "30 ms"}, "I": "20 ms", "W": "20 ms"}},
        {"events": ["link paris--warsaw rate 20 % at 1"]},
    ],
)
def test_a_csv_takes_what_is_predicted_of_it(
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    network = yaml.safe_load(LONGHAUL.read_text())
    job = yaml.safe_load(PP4.read_text()) | {"parallelism": {"pipeline": 4, "data": 2}, "schedules": ["zb-h1"]}
    network["datacenters"] = {name: {"nodes": 4} for name in network["datacenters"]}
    (tmp_path / "net.yaml").write_text(yaml.safe_dump(network | {"events": settings.get("events", [])}))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job | {"pacing": settings.get("pacing", job["pacing"])}))
    files = ("net.yaml", "job.yaml")
    assert ended(monkeypatch, "schedule", "export", *files, "--schedule", "zb-h1", "--out", "an order.csv") == 0
    capsys.readouterr()
    assert ended(monkeypatch, "predict", *files, "--json") == 0
    (predicted,) = json.loads(capsys.readouterr().out)["schedules"]
    assert ended(monkeypatch, "schedule", "validate", *files, "an order.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["predicted_s"] == predicted["predicted_s"]


def test_an_order_that_is_kept_is_blamed_on_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [[f"{stage}F0", f"{stage}B0"] for stage in range(4)]
    rows[1].append("1F9")
    (tmp_path / "kept.json").write_text(json.dumps({"1f1b": {"rows": rows, "solver": None}}))
    words = ("--schedule", "1f1b", "--set", "microbatches=1", "--schedules-from", tmp_path / "kept.json")
    assert ended(monkeypatch, "plan", LONGHAUL, PP4, *words, "-o", tmp_path / "plan.json") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: {tmp_path / 'kept.json'}: schedule 1f1b: rank 1, action 2: got 1F9, expected")


def test_one_schedule_is_exported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("schedule", "export", LONGHAUL, PP4, "--schedule", "1f1b", "--schedule", "zb-h1")
    assert ended(monkeypatch, *words) == 2
    assert "--schedule: option: got 'zb-h1', expected one, which is written (1f1b)" in capsys.readouterr().err


def test_what_torch_does_not_know_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for schedule, said in (("crosspipe-greedy", "warning: sub-blocks, which torch does not know"), ("1f1b", "")):
        assert ended(monkeypatch, "schedule", "export", LONGHAUL, PP4, "--schedule", schedule) == 0
        shown = capsys.readouterr()
        assert shown.err.startswith(said) if said else not shown.err
        assert "[" not in shown.out


def test_zero_iterations_blame_the_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(monkeypatch, "run", LONGHAUL, PP4, "--iterations", "0") == 2
    assert "error: testbed run: --iterations: got '0', expected at least 1" in capsys.readouterr().err


def test_the_shell_completes_schedules(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_TESTBED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "testbed predict a b --schedule zb-")
    monkeypatch.setenv("COMP_CWORD", "5")
    ended(monkeypatch)
    assert capsys.readouterr().out.split() == ["zb-h1", "zb-h2", "zb-v"]


def test_a_wait_for_the_compiler_is_announced_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "testbed")
    announce(tmp_path, "the event model: about 12 s")
    assert "compiling the event model" in caplog.text
    caplog.clear()
    (tmp_path / "simulate.nbi").touch()
    announce(tmp_path, "the event model: about 12 s")
    assert not caplog.text


def test_a_family_may_remark_on_what_it_made(tmp_path: Path) -> None:
    plan = plan_of([{"schedule": "geopipe", "memory": 5}, "geopipe", {"schedule": "geopipe", "extra": 0}], tmp_path)
    remarks = {label: one.remarks for label, one in make(plan, choose(plan)).made.items()}
    assert [len(one) for one in remarks.values()] == [0, 1, 0]
    assert Family(one_f_one_b).remark is None


def test_a_selection_knows_what_fits() -> None:
    choices = [ScheduleChoice(schedule=name) for name in ("1f1b", "gpipe")]
    assert Selection(choices, {}, {"gpipe": "too large"}).fitting == choices[:1]


REMARKS = """
from testbed.schedule.family import Family
from testbed.schedule.one_f_one_b import one_f_one_b

def broken(problem):
    raise ValueError("no words")

FAMILY = Family(one_f_one_b, remark=broken)
"""


def test_a_remark_that_fails_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(REMARKS)
    plan = plan_of(["mine.py:FAMILY"], tmp_path)
    with pytest.raises(BadInput, match=r"got 'mine.py:FAMILY', .*ValueError in line 6: no words"):
        make(plan, choose(plan))
