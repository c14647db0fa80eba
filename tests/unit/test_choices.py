"""Schedules that a workload chooses: labels, options, files of one's own."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.errors import BadInput, DoesNotFit
from testbed.model.bounds import Bound, lower_bound
from testbed.pipeline.problem import Problem
from testbed.pipeline.torch_csv import Form, to_csv
from testbed.plan.costs import predict
from testbed.plan.plan import Plan
from testbed.planning.resolve import generate, load_plan
from testbed.planning.schedule_comparison import BRIEF, compare_schedules
from testbed.planning.schedules import QUICK, choose, make, quick_choices, ranked
from testbed.schedule.evaluation import Misfit, PredictedSchedule, ScheduleRequest, generate_each
from testbed.schedule.registry import FAMILIES
from testbed.spec.choice import ScheduleChoice, with_labels
from testbed.spec.document import FieldError
from testbed.spec.workload import load_workload, workload_document

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"


def plan_of(schedules: list[Any], directory: Path) -> Plan:
    document = yaml.safe_load(PP4.read_text()) | {"schedules": schedules}
    (directory / "job.yaml").write_text(yaml.safe_dump(document))
    return load_plan(LONGHAUL, directory / "job.yaml")


def labels(*choices: dict[str, Any]) -> list[str]:
    return [choice.label for choice in with_labels([ScheduleChoice(**choice) for choice in choices])]


def test_labels_say_what_differs() -> None:
    assert labels({"schedule": "geopipe", "extra": 2}, {"schedule": "1f1b"}) == ["geopipe", "1f1b"]
    assert labels({"schedule": "geopipe", "extra": 0}, {"schedule": "geopipe", "extra": 3}) == [
        "geopipe extra=0",
        "geopipe extra=3",
    ]
    assert labels(
        {"schedule": "search", "seed": 1, "evaluations": 9, "memory": 4},
        {"schedule": "search", "seed": 1, "memory": 6.5},
        {"schedule": "search", "label": "ours"},
    ) == ["search evaluations=9 memory=4", "search memory=6.5", "ours"]
    assert labels({"schedule": "a/eager.py:eager"}, {"schedule": "my own.csv"}) == ["eager", "my own"]


def test_equal_labels_are_refused() -> None:
    for choices in (
        [{"schedule": "1f1b"}, {"schedule": "1f1b"}],
        [{"schedule": "1f1b"}, {"schedule": "gpipe", "label": "1f1b"}],
        [{"schedule": "a/x.csv"}, {"schedule": "b/x.csv"}],
    ):
        with pytest.raises(FieldError, match=r"a label of its own \(schedules.0 has this one\)"):
            labels(*choices)


def test_one_family_runs_with_several_options(tmp_path: Path) -> None:
    plan = plan_of([{"schedule": "geopipe", "extra": 0}, {"schedule": "geopipe", "extra": 3, "memory": 8}], tmp_path)
    made = make(plan, choose(plan)).made
    assert list(made) == ["geopipe extra=0", "geopipe extra=3 memory=8"]
    assert made["geopipe extra=0"].schedule.rows != made["geopipe extra=3 memory=8"].schedule.rows
    assert [choice.label for choice in choose(plan, ["geopipe"])] == list(made)
    (second,) = choose(plan, ["geopipe extra=3 memory=8"])
    assert second.options() == {"extra": 3}
    compared = compare_schedules(plan, choose(plan))
    assert {row.label: row.schedule for row in compared.schedules} == dict.fromkeys(made, "geopipe")


def test_schedules_of_one_problem_share_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a comparison asks of a problem it asks once: its bound is no matter of the schedule."""
    asked: list[Problem] = []

    def counted(problem: Problem) -> Bound:
        asked.append(problem)
        return lower_bound(problem)

    monkeypatch.setattr("testbed.planning.schedule_comparison.lower_bound", counted)
    plan = plan_of(["1f1b", "zb-h1", "crosspipe-greedy", {"schedule": "geopipe", "memory": 5}], tmp_path)
    found = compare_schedules(plan, choose(plan))
    assert [problem.memory_limit[0] for problem in asked] == [4, 5, 8]  # 8: with room for all microbatches
    for row in found.schedules:
        assert row.bound == lower_bound(asked[row.schedule == "geopipe"])


def test_what_has_all_the_memory_that_it_can_use_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[str] = []

    def counted(tasks: Sequence[ScheduleRequest]) -> list[PredictedSchedule | Misfit]:
        again.extend(task.choice.label for task in tasks)
        return generate_each(tasks)

    monkeypatch.setattr("testbed.planning.schedule_comparison.generate_each", counted)
    schedules = ["1f1b", *({"schedule": "crosspipe-greedy", "memory": held} for held in (4, 8))]
    plan = plan_of(schedules, tmp_path)  # of 8 microbatches
    found = {row.label: row.memory_s for row in compare_schedules(plan, choose(plan)).schedules}
    assert again == ["crosspipe-greedy memory=4"]
    less, all_of_it = found["crosspipe-greedy memory=4"], found["crosspipe-greedy memory=8"]
    assert found["1f1b"] is None
    assert less is not None
    assert less > 0
    assert all_of_it == 0


def test_comparing_asks_briefly_for_what_more_memory_would_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`search` took its minute once for its own memory and once for any."""
    asked: list[tuple[object, float]] = []

    def noted(tasks: Sequence[ScheduleRequest]) -> list[PredictedSchedule | Misfit]:
        asked.extend((task.choice.options().get("time_limit_s"), task.problem.memory_limit[0]) for task in tasks)
        return [Misfit("not now", over_memory=False) for _ in tasks]

    monkeypatch.setattr("testbed.planning.schedule_comparison.generate_each", noted)
    plan = plan_of([{"schedule": "search", "evaluations": 3}], tmp_path)
    (row,) = compare_schedules(plan, choose(plan)).schedules
    assert asked == [(BRIEF["time_limit_s"], 8.0)]
    assert row.memory_s == 0
    limits = {one.schedule: one.options().get("time_limit_s") for one in quick_choices(plan)}
    assert limits["search"] is None, "as the workload has it"
    limits = {one.schedule: one.options().get("time_limit_s") for one in quick_choices(plan_of(["1f1b"], tmp_path))}
    assert limits["search"] == QUICK["time_limit_s"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"schedule": "geopipe", "extra": -1}, "schedules.1.extra: got -1, expected at least 0"),
        ({"schedule": "geopipe", "n_sub": 4}, "schedules.1.n_sub: got 4, expected an option of geopipe (extra)"),
        ({"schedule": "1f1b", "extra": 1}, "schedules.1.extra: got 1, expected an option of 1f1b (it has none)"),
        ({"schedule": "crosspipe-ud", "progress": 1}, "schedules.1.progress: got 1, expected an option"),
        ({"schedule": "crosspipe-ud", "time_limit_s": 0}, "schedules.1.time_limit_s: got 0, expected more than 0"),
        ({"schedule": "fastest"}, "schedules.1.schedule: got 'fastest', expected one of gpipe, 1f1b"),
        ({"schedule": "none.py:x"}, "schedules.1.schedule: got 'none.py', expected a readable file"),
        ({"schedule": "s.py:late"}, "schedules.1.schedule: got 's.py:late', expected a name in that file (early"),
        ({"schedule": "s.py:early", "lead": "x"}, "schedules.1.lead: got 'x', expected a whole number"),
        ({"schedule": "s.py:number"}, "a Family or a function problem -> Schedule, not int"),
        ({"schedule": "bad.csv"}, "bad: row 1, cell 2: got '0F', expected an action"),
    ],
)
def test_a_bad_choice_names_file_field_and_what_was_expected(
    tmp_path: Path, choice: dict[str, Any], expected: str
) -> None:
    (tmp_path / "s.py").write_text("def early(problem, lead: int = 1): ...\nnumber = 3\n")
    (tmp_path / "bad.csv").write_text("0F0,0F\n")
    with pytest.raises(BadInput) as caught:
        plan_of(["gpipe", choice], tmp_path)
    assert expected in str(caught.value)
    if "schedules.1" in expected:
        assert str(caught.value).startswith(f"{tmp_path / 'job.yaml'}: schedules.1")


def test_generators_of_ones_own_that_fail(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("def crash(problem):\n    return [][1]\ndef text(problem):\n    return 'F'\n")
    plan = plan_of([{"schedule": "s.py:crash"}, {"schedule": "s.py:text"}], tmp_path)
    with pytest.raises(BadInput, match=r"a generator that works \(IndexError in line 2: "):
        generate(plan, choose(plan, ["crash"])[0])
    with pytest.raises(BadInput, match="a generator of a Schedule, not str"):
        generate(plan, choose(plan, ["text"])[0])


def test_a_torch_csv_runs_under_its_own_name(tmp_path: Path) -> None:
    original = plan_of(["zb-v"], tmp_path)
    schedule = generate(original, choose(original, ["zb-v"])[0]).schedule
    (tmp_path / "mine.csv").write_text(to_csv(schedule, Form.COMPUTE_ONLY))
    plan = plan_of([{"schedule": "mine.csv"}], tmp_path)
    (choice,) = choose(plan)
    mine = generate(plan, choice).schedule
    assert (mine.name, mine.rows, mine.stage_to_rank) == ("mine", schedule.rows, schedule.stage_to_rank)
    (first,) = choose(original)
    assert predict(plan, choice, mine).makespans()[0] == predict(original, first, schedule).makespans()[0]


def test_a_csv_that_does_not_fit_the_plan(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("0F0,0B0\n1F0,1B0\n")
    plan = plan_of([{"schedule": "two.csv"}], tmp_path)
    with pytest.raises(BadInput, match="two: got 'a schedule for 2 ranks', expected one for 4 ranks"):
        make(plan, choose(plan))
    (tmp_path / "short.csv").write_text("".join(f"{s}F0,{s}B0\n" for s in range(4)))
    plan = plan_of([{"schedule": "short.csv"}], tmp_path)
    with pytest.raises(DoesNotFit, match="got 'a schedule of 1', expected one of 8"):
        make(plan, choose(plan))


def test_files_on_the_command_line_are_relative_to_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of([{"schedule": "crosspipe-greedy", "label": "eager"}], tmp_path)
    monkeypatch.chdir(EXAMPLES)
    with pytest.raises(BadInput, match="a file called otherwise"):
        choose(plan, ["my_schedule.py:eager"])
    (choice,) = choose(plan_of(["1f1b"], tmp_path), ["my_schedule.py:eager"])
    assert choice.label == "eager"
    assert choice.content == (EXAMPLES / "my_schedule.py").read_text()


def test_two_schedules_that_are_called_alike_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    order = "".join(f"{stage}F0,{stage}B0\n" for stage in range(4))
    for directory in ("one", "other"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "zb-v.csv").write_text(order)
    plan = plan_of(["1f1b"], tmp_path)
    for names in (["one/zb-v.csv", "other/zb-v.csv"], ["zb-v", "one/zb-v.csv"], ["one/zb-v.csv", "zb-v"]):
        with pytest.raises(BadInput, match=f"got '{names[1]}', expected a file called otherwise: another schedule"):
            choose(plan, names)
    assert [one.schedule for one in choose(plan, ["zb-v", "1f1b", "zb-v"])] == ["zb-v", "1f1b"]


def test_a_workload_stands_alone_once_it_is_read(tmp_path: Path) -> None:
    """What guests and workers get needs no other file."""
    document = workload_document(EXAMPLES / "my_job.yaml", {"microbatches": "8"})
    (tmp_path / "copy.yaml").write_text(yaml.safe_dump(document))
    copy, original = load_workload(tmp_path / "copy.yaml"), load_workload(EXAMPLES / "my_job.yaml")
    assert copy == original
    assert pickle.loads(pickle.dumps(original)) == original
    plan = load_plan(LONGHAUL, tmp_path / "copy.yaml")
    assert list(make(plan, choose(plan)).made) == ["1f1b", "eager lead=1", "eager lead=3", "by hand"]
    # of the last stage: a perceptron and the projection
    assert (original.tensor_bytes(), original.stage_bytes(4)) == (4 * 32 * 64 * 4, (65 * 64 + 65 * 256) * 4)


def test_the_best_is_among_the_workloads_own_and_all_others(tmp_path: Path) -> None:
    plan = plan_of(["best", {"schedule": "geopipe", "extra": 0}, {"schedule": "geopipe", "extra": 1}], tmp_path)
    best = ScheduleChoice(schedule="best")
    found = [candidate.choice.label for candidate in ranked(plan, best).found]
    assert {"geopipe extra=0", "zb-v", "1f1b"} <= set(found)
    assert "crosspipe-ud" not in found
    (label,) = make(plan, [best]).made
    assert label == f"best {found[0]}"


def test_what_a_family_says_of_itself() -> None:
    """Memory is used by those that look at it, and only by those."""
    assert {name for name, family in FAMILIES.items() if family.uses_spare_memory} == {
        *("geopipe", "pipemorph", "crosspipe-greedy", "search", "search-wave", "search-loop", "wave-greedy"),
        *("crosspipe-ud", "crosspipe-wave", "crosspipe-loop"),
    }
    assert all(family.summary for family in FAMILIES.values())
    assert FAMILIES["search"].option_names() == ["evaluations", "seed", "time_limit_s"]
    assert FAMILIES["crosspipe-ud"].option_names() == ["time_limit_s"]


def test_a_name_that_is_none_is_told_all_that_would_be() -> None:
    plan = load_plan(LONGHAUL, PP4)
    with pytest.raises(BadInput, match=r"or FILE.py:NAME, best, FILE.csv, or a label of the workload's schedules"):
        choose(plan, ["nosuch"])
    with pytest.raises(BadInput) as refused:
        choose(plan, ["nosuch.csv"])
    assert "a label of" not in str(refused.value)
