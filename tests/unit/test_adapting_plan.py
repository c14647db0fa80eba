"""Plans whose job adapts while it is trained: what they hold, and what cannot adapt."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.adaptation.controller import choose
from testbed.cli.adaptation_tables import what_a_swap_took, what_it_brought
from testbed.errors import ExitCode
from testbed.planning import file

ROOT = Path(__file__).parents[2]
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
        (("--adapt", "mine.py:decide"), "a readable file"),
        (("--adapt", "examples/my_controller.py:decide"), "a name in that file"),
        (("--adapt", "ski-rental", "--swap", "zb-h1@3"), "no --swap zb-h1@3 beside it"),
    ],
)
def test_what_cannot_adapt(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    done = run_testbed("plan", *FILES, *words, "-o", tmp_path / "plan.json")
    assert done.returncode == ExitCode.BAD_INPUT
    assert expected in " ".join(done.stderr.split())
    assert not (tmp_path / "plan.json").exists()


def test_a_controller_in_a_file_travels_with_the_plan(tmp_path: Path) -> None:
    mine, out = tmp_path / "mine.py", tmp_path / "plan.json"
    mine.write_text((ROOT / "examples/my_controller.py").read_text())
    asked = f"{mine}:eager,gain=0.05"
    done = run_testbed("plan", *FILES, "--schedule", "1f1b", "--adapt", asked, "-o", out)
    assert done.returncode == 0, done.stderr
    mine.unlink()
    plan = file.read(out)
    assert plan.adaptation is not None
    assert plan.adaptation.content is not None
    found = choose(plan.adaptation.controller, content=plan.adaptation.content)
    assert found.options == {"gain": 0.05}
    assert f"{mine}:eager" in file.code_in(out), "whoever is handed the plan is asked"


ROW = {"never_predicted_s": 1.0, "swapped_to": None}


def test_what_it_brought_is_measured_beside_what_is_predicted_without() -> None:
    rows = [ROW | {"measured_s": 1.0, "swapped_to": "zb-h1"}, ROW | {"measured_s": 0.6}]
    said = what_it_brought({"iterations": rows})
    assert said == "2 iterations with 1 swap: 1.6 s; never adapting (predicted): 2.0 s (-20.0%)"


def test_beside_it_stands_what_an_oracle_would_take() -> None:
    rows = [
        ROW | {"measured_s": 1.0, "swapped_to": "zb-h1"} | KNOWS,
        ROW | {"measured_s": 0.6} | KNOWS | {"oracle_swaps": False},
    ]
    said = what_it_brought({"swap_s": 0.1, "iterations": rows})
    assert said.endswith("; oracle (predicted): 1.2 s with 1 swap; 43% of its gain, swaps paid for")
    nothing = [ROW | {"measured_s": 1.0 + 1e-9} | KNOWS | {"oracle_swaps": False}]
    assert what_it_brought({"iterations": nothing}).endswith("; 0% of its gain, swaps paid for"), "and no -0%"


def swapping(kind: str, took_s: float, believed_s: float) -> dict[str, object]:
    return ROW | {"swapped_to": "zb-h1", "swap": kind, "swap_took_s": took_s, "swap_believed_s": believed_s}


def test_what_swaps_took_stands_beside_what_was_believed() -> None:
    rows = [
        swapping("schedule", 0.0, 0.02),
        ROW | {"idle_s": 0.09, "probing_s": 0.06},
        swapping("microbatches", 0.0102, 0.02),
        swapping("schedule", 0.001, 0.0),
        ROW | {"idle_s": None},
    ]
    assert list(what_a_swap_took({"swap_s": 0.02, "iterations": rows})) == [
        "2 swaps of schedule took 0 s to 1 ms (believed to cost 20 ms, before the last one 0 s)",
        "1 swap of microbatches took 10.2 ms (believed to cost 20 ms)",
        "idle behind an iteration: 90 ms, 60 ms of it for probes",
    ]
    assert list(what_a_swap_took({"swap_s": 0.02, "iterations": [ROW]})) == []
    (alike,) = what_a_swap_took({"swap_s": 0.02, "iterations": [swapping("schedule", 13e-9, 0.02)] * 2})
    assert alike.startswith("2 swaps of schedule took 13 ns (")


KNOWS = {"oracle": "zb-h1", "oracle_swaps": True, "oracle_predicted_s": 0.6}
