"""Plans whose job adapts while it is trained: what they hold, and what cannot adapt."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.cli.adaptation_tables import what_it_brought
from testbed.errors import ExitCode
from testbed.planning import file

FILES = ("two-dc-longhaul", "tiny-gpt-pp4")


def test_a_plan_has_what_it_may_swap_between(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    schedules = [word for name in ("1f1b", "zb-v", "crosspipe-greedy") for word in ("--schedule", name)]
    done = run_testbed("plan", *FILES, *schedules, "--adapt", "ski-rental,dwell=4", "-o", out)
    assert done.returncode == 0, done.stderr
    plan = file.read(out)
    assert plan.adaptation is not None
    assert [case.label for case in plan.cases] == ["1f1b"]
    assert [choice.label for choice in plan.adaptation.choices] == ["1f1b", "crosspipe-greedy"]  # not zb-v
    assert plan.adaptation.controller == "ski-rental,dwell=4"
    assert file.from_json(file.to_json(plan), "plan.json") == plan


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--adapt", "luck"), "error: --adapt: controller: got 'luck'"),
        (("--adapt", "ski-rental,dwell=0"), "dwell"),
        (("--adapt", "mine.py:decide"), "`testbed adapt` rehearses one's own"),
        (("--adapt", "ski-rental", "--swap", "zb-h1@3"), "no --swap zb-h1@3 beside it"),
        (("--adapt", "ski-rental", "--set", "parallelism.data=2"), "one job that is one pipeline"),
    ],
)
def test_what_cannot_adapt(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    done = run_testbed("plan", *FILES, *words, "-o", tmp_path / "plan.json")
    assert done.returncode == ExitCode.BAD_INPUT
    assert expected in " ".join(done.stderr.split())
    assert not (tmp_path / "plan.json").exists()


def test_what_it_brought_is_measured_beside_what_is_predicted_without() -> None:
    rows = [
        {"measured_s": 1.0, "never_predicted_s": 1.0, "swapped_to": "zb-h1"},
        {"measured_s": 0.6, "never_predicted_s": 1.0, "swapped_to": None},
    ]
    said = what_it_brought({"iterations": rows})
    assert said == "2 iterations with 1 swaps: 1.6 s; never adapting (predicted): 2.0 s (-20.0%)"
