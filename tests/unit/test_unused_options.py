"""Options that nothing would use, and plans that were altered by hand: one line each, and no file is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from test_route_command import CLOS, PP4, called
from test_screens import require_legible
from typer.exceptions import TyperException

from testbed.cli import app
from testbed.cli.run_tables import jobs_tables
from testbed.cli.usage import as_bad_input
from testbed.errors import BadInput
from testbed.judge.comparison import JobComparison
from testbed.planning import file

ROOT = Path(__file__).parents[2]
LONGHAUL = "topologies/two-dc-longhaul.yaml"


@pytest.fixture(autouse=True)
def _at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(
    ("topology", "words", "expected"),
    [
        (CLOS, ("--elephants-from", "2 MB"), "--elephants-from: option: got '2 MB', expected --policy beside it"),
        (CLOS, ("--detour", "0"), "--detour: option: got 0, expected --policy beside it"),
        (
            CLOS,
            ("--lose", "pod-spine0@1", "--lose", "pod-spine1@2"),
            "expected one without which pod-leaf0 still reaches",
        ),
        (CLOS, ("--lose", "pod-leaf0@1"), "event.name: got 'pod-leaf0', expected a switch or a link (pod-spine0,"),
        (CLOS, ("--policy", "nowhere.py:mine"), "expected a readable file (No such file or directory)"),
        (
            CLOS,
            ("--lose", "pod-spine0@1", "--iterations", "1"),
            "got 1, expected more iterations than 1 (--iterations N)",
        ),
        (CLOS, ("--lose", "pod-spine0@1", "--policy", "joint,time_limit_s=999"), "a policy that chooses routes alone"),
        (LONGHAUL, ("--lose", "paris--warsaw@1"), "expected one without which paris still reaches warsaw"),
        (LONGHAUL, ("--enforce", "ports"), "--enforce: option: got 'ports', expected rules: routers hash"),
    ],
)
def test_what_nothing_would_use(topology: str, words: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    done = called("plan", topology, PP4, "--schedule", "1f1b", *words, "-o", str(tmp_path / "plan.json"))
    assert isinstance(done.exception, BadInput), done.output
    assert expected in str(done.exception)
    assert not list(tmp_path.iterdir())


def written(directory: Path, *words: str) -> Path:
    out = directory / "plan.json"
    done = called("plan", CLOS, PP4, "--schedule", "1f1b", *words, "-o", str(out))
    assert done.exit_code == 0, done.output
    return out


def test_a_plan_has_decided_that_already(tmp_path: Path) -> None:
    plan = str(written(tmp_path))
    for words in (("--detour", "0"), ("--elephants-from", "2 MB")):
        done = called("run", plan, *words)
        assert f"{plan}: {words[0]}: got '" in str(done.exception), done.output
    for command in ("run", "predict", "route"):
        for what in (plan, str(tmp_path)):
            done = called(command, what, PP4)
            assert "expected none: a plan has its jobs already" in str(done.exception), done.output


def test_several_jobs_leave_no_node_for_a_third(tmp_path: Path) -> None:
    done = called("plan", LONGHAUL, PP4, PP4, PP4, "-o", str(tmp_path / "plan.json"))
    assert "(0 on the nodes that other jobs leave)" in str(done.exception)


def _continuation(plan: dict[str, Any]) -> Any:
    return plan["cases"][1]["continues"]


def _there_and_back(plan: dict[str, Any]) -> None:
    first = plan["cases"][0]["routes"][0]
    there = plan["network"]["directions"][first[0]]
    assert there["source"] == "pod-leaf0"
    plan["cases"][0]["routes"][0] = [first[0], first[0] ^ 1, *first]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (_there_and_back, "cases.0.routes.0: got .*expected no place twice"),
        (lambda plan: plan["events"][0].update(name="x"), "events.0.name: got 'x', expected a switch"),
        (lambda plan: _continuation(plan).update(detour=9), "cases.1.continues.detour: got 9"),
        (
            lambda plan: _continuation(plan).update(elephants_from=-1),
            "cases.1.continues.elephants_from: got -1",
        ),
        (
            lambda plan: _continuation(plan).update(policy="x"),
            "cases.1.continues.policy: got 'x', expected one of",
        ),
        (
            lambda plan: _continuation(plan).update(policy="joint"),
            "cases.1.continues.policy: .*chooses routes alone",
        ),
        (lambda plan: plan["jobs"][0].update(start_s=-1), "jobs.0.start_s: got -1"),
        (lambda plan: plan["flows"].__setitem__(1, plan["flows"][0]), "flows.1: got 'activation from 0 to 1'"),
    ],
)
def test_an_altered_plan(damage: Callable[[dict[str, Any]], None], expected: str, tmp_path: Path) -> None:
    path = written(tmp_path, "--policy", "greedy", "--lose", "pod-spine1@3")
    plan = json.loads(path.read_text())
    damage(plan)
    path.write_text(json.dumps(plan))
    done = called("predict", str(path))
    assert isinstance(done.exception, BadInput), done.output
    assert str(done.exception).startswith(f"{path}: ")
    with pytest.raises(BadInput, match=expected):
        raise done.exception


def test_two_jobs_of_one_name(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    called("plan", LONGHAUL, PP4, PP4, "--schedule", "1f1b", "-o", str(path))
    text = path.read_text().replace('"tiny-gpt-pp4-2"', '"tiny-gpt-pp4"')
    with pytest.raises(BadInput, match=r"jobs\.name: .*expected a name for every job alone"):
        file.from_json(text, "plan.json")


def test_a_plan_says_what_is_unusual_about_its_cases(tmp_path: Path) -> None:
    words = ("--policy", "greedy", "--lose", "pod-spine1@3", "--enforce", "ports", "-o", str(tmp_path / "plan.json"))
    text = called("plan", CLOS, PP4, PP4, "--schedule", "1f1b", *words, COLUMNS="80").output
    require_legible(text, 80, [str(tmp_path)])
    assert "flows leave their default routes" in text
    assert "pod-spine1 gone; goes on after 3" in " ".join(text.replace("│", " ").split())
    assert "routes are kept by" in text
    assert "case 1f1b" not in called("plan", CLOS, PP4, "--schedule", "1f1b", "-o", str(tmp_path / "p.json")).output


def test_interleave_has_nothing_to_move_of_one_job(tmp_path: Path) -> None:
    words = ("--policy", "interleave", "-o", str(tmp_path / "plan.json"))
    assert (
        "one job alone has nothing to begin later than"
        in called("plan", CLOS, PP4, "--schedule", "1f1b", *words).output
    )


def test_help_has_the_lines_of_the_terminal_alone() -> None:
    """Line ends of the docstring are not shown: at any width, words fill the line."""
    shown = called("plan", "--help", COLUMNS="80").output
    assert "\nschedules of all of them are one case, the second ones another, and so on; a\n" in shown


def test_arguments_left_over_are_named_whole() -> None:
    with pytest.raises(TyperException) as raised:
        app(["knee", LONGHAUL, PP4, PP4, "more.yaml"], prog_name="testbed", standalone_mode=False)
    expected = f"testbed knee: arguments: got '{PP4} more.yaml', expected no more of them"
    assert str(as_bad_input(raised.value)).startswith(expected)


def test_what_only_measuring_uses(tmp_path: Path) -> None:
    for option, value in (("--wall-limit", "5"), ("--out", str(tmp_path / "runs"))):
        done = called("knee", LONGHAUL, PP4, option, value, "--picture", str(tmp_path / "knee.svg"))
        assert f"{option}: option: got" in str(done.exception), done.output
    done = called("compare-axes", "workloads/paper-llama3-405b.yaml", "--wall-limit", "5")
    assert "--wall-limit: option: got 5.0, expected --measure N beside it" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_what_only_repeated_runs_have(tmp_path: Path) -> None:
    for words in (["--quick"], ["--out", str(tmp_path / "runs")]):
        done = called("baseline", "check", "--predict-only", *words)
        assert f"{words[0]}: option: got" in str(done.exception), done.output
        assert "expected no --predict-only beside it" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_no_flow_is_large_enough() -> None:
    done = called("route", CLOS, PP4, "--schedule", "1f1b", "--policy", "greedy", "--elephants-from", "9 GB")
    assert "there is nothing to route: no flow sends as much as --elephants-from" in " ".join(done.output.split())


def test_every_row_of_several_jobs_says_whose_it_is() -> None:
    """Where the columns have no room in one table, the job stays beside its case."""
    times: dict[str, Any] = {"measured_s": 1.0, "predicted_s": 1.0, "predicted_alone_s": 0.5, "slowdown_predicted": 2.0}
    times |= dict.fromkeys(("alone_of", "measured_alone_s", "slowdown_measured"))
    named = [("1f1b on ecmp seed=3", "the-first-job"), ("1f1b on ecmp seed=3", "another")]
    rows = [create_autospec(JobComparison, instance=True, label=label, job=job, **times) for label, job in named]
    for width, heading in ((78, "case: job"), (140, "case")):
        (table,) = jobs_tables("title", rows, width)
        assert table.columns[0].header == heading
        cells = [str(cell) for column in table.columns[:2] for cell in column.cells]
        assert any("the-first-job" in cell for cell in cells)
        assert any("another" in cell for cell in cells)
