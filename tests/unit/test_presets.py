"""Every topology and workload that comes with the testbed loads, makes a plan, and is predicted."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from in_process import run_testbed

from testbed.cli import app
from testbed.cli.help import EXAMPLES
from testbed.cli.plan import plan_of
from testbed.errors import BadInput
from testbed.plan.costs import predict_case, problem, schedule_of
from testbed.planning.resolve import generate, load_plan, with_cases
from testbed.planning.schedules import choose
from testbed.schedule.geopipe import cuts, hiding
from testbed.spec.topology import load_topology

ROOT = Path(__file__).parents[2]
TOPOLOGIES = sorted((ROOT / "topologies").glob("*.yaml"))
WORKLOADS = sorted((ROOT / "workloads").glob("*.yaml"))
STUDIES = sorted((ROOT / "studies").glob("*.yaml"))
NAMES = {path.stem for path in (*TOPOLOGIES, *WORKLOADS, *STUDIES)}
GEOPIPE = ROOT / "topologies/geopipe-three-region.yaml"


FASTEST_LAB_BPS = 100e9
"""Of a link; faster ones are for workloads at full scale, where there are any."""


def suitable(topology: Path) -> Path:
    """A workload of eight stages for a topology."""
    fast = max(one.rate_bps for one in load_topology(topology).directions()) >= FASTEST_LAB_BPS
    full_scale = [path for path in WORKLOADS if path.name == "paper-llama2-13b.yaml"]
    return full_scale[0] if fast and full_scale else ROOT / "workloads/tiny-gpt-pp8.yaml"


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda path: path.stem)
def test_a_topology_is_planned_and_predicted(topology: Path) -> None:
    plan = load_plan(topology, suitable(topology), settings=["memory=32"])
    assert plan.network.name == topology.stem
    choices = choose(plan, ["1f1b", "geopipe"])
    plan = with_cases(plan, choices, {choice.label: generate(plan, choice) for choice in choices})
    seconds = []
    for case in plan.cases:
        schedule = schedule_of(plan, case)
        assert schedule is not None
        seconds.append(float(predict_case(plan, case, schedule).makespans()[0]))
    pacing, microbatches = plan.jobs[0].workload.pacing, plan.jobs[0].workload.microbatches
    assert pacing is not None
    tau_s = min(sum(pacing.of(kind, rank) for kind in ("F", "I", "W")) for rank in range(8))
    assert seconds[0] >= seconds[1] >= (microbatches + 8 - 1) * tau_s
    assert topology.name in (ROOT / "docs/presets.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda path: path.stem)
def test_a_workload_has_a_topology_that_comes_with_it(workload: Path) -> None:
    assert any(is_planned(topology, workload) for topology in TOPOLOGIES)


def is_planned(topology: Path, workload: Path) -> bool:
    """Whether there is a plan of them."""
    try:
        plan = load_plan(topology, workload)
    except BadInput:
        return False
    return plan.jobs[0].name == workload.stem


def test_geopipes_models_need_one_more_forward_per_cut_and_have_memory_for_it() -> None:
    for name in ("geopipe-llama2-13b", "geopipe-llama2-70b"):
        plan = load_plan(GEOPIPE, ROOT / f"workloads/{name}.yaml")
        (choice,) = choose(plan, ["geopipe"])
        costs = problem(plan, choice)
        assert cuts(costs) == [2, 5]
        assert hiding(costs) == {2: 1, 5: 1}


# --- by name -------------------------------------------------------------------------------------


def test_a_preset_is_its_file_wherever_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_file = load_plan(ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml")
    monkeypatch.chdir(tmp_path)
    assert load_plan(Path("two-dc-longhaul"), Path("tiny-gpt-pp4")) == by_file


def test_a_file_of_that_name_comes_before_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("campus").mkdir()  # no topology: the preset is meant
    assert load_topology(Path("campus")).name == "campus"
    Path("campus").rmdir()
    Path("campus").write_bytes((ROOT / "topologies/two-dc-metro.yaml").read_bytes())
    assert load_topology(Path("campus")).name == "two-dc-metro"


def test_a_results_directory_with_a_presets_name_is_a_plan_where_no_workload_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("campus").mkdir()
    plan = tmp_path / "campus/plan.json"
    written = run_testbed("plan", "two-dc-metro", "tiny-gpt-pp4", "-o", plan, "--schedule", "1f1b")
    assert written.returncode == 0, written.stderr
    assert plan_of(Path("campus"), None, None, None, quiet=True).network.name == "two-dc-metro"
    beside = plan_of(Path("campus"), [Path("paper-llama2-13b")], ["1f1b"], None, quiet=True)
    assert beside.network.name == "campus"


def test_files_that_a_preset_is_given_beside_it_lie_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_bytes((ROOT / "examples/my_schedule.csv").read_bytes())
    settings = ["schedules=[mine.csv]", "memory=8"]
    (choice,) = load_plan(Path("two-dc-longhaul"), Path("tiny-gpt-pp4"), settings=settings).jobs[0].workload.schedules
    assert choice.schedule == "mine.csv"


def test_a_name_is_of_one_preset_and_its_file_says_what_it_is() -> None:
    assert len(NAMES) == len(TOPOLOGIES) + len(WORKLOADS) + len(STUDIES)
    done = run_testbed("presets", "--json")
    listed = json.loads(done.stdout)
    assert {row["name"] for rows in listed.values() for row in rows} == NAMES
    for rows in listed.values():
        for row in rows:
            assert row["description"], row
            assert Path(row["file"]).stem == row["name"]


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name in command.commands:
        yield from commands(command.commands[name], (*path, name))


def inputs(command: Any) -> list[tuple[Any, set[str]]]:
    """The parameters of a command that take a topology, workloads or a study, with the presets that each may name."""
    found = []
    for parameter in command.params:
        kinds = {"TOPOLOGY": TOPOLOGIES, "WORKLOAD": WORKLOADS, "STUDY": STUDIES}
        named = [{file.stem for file in files} for kind, files in kinds.items() if kind in str(parameter.metavar)]
        found += [(parameter, names) for names in named]
    return found


def test_a_shell_offers_presets_wherever_a_topology_a_workload_or_a_study_is_taken() -> None:
    taken = 0
    for path, command in commands(typer.main.get_command(app)):
        context = command.make_context(path[-1], [], resilient_parsing=True)
        for parameter, names in inputs(command):
            taken += 1
            assert {item.value for item in parameter.shell_complete(context, "")} >= names, (path, parameter.name)
    assert taken > 20


def test_topologies_and_workloads_in_examples_of_help_are_presets_or_a_users_own() -> None:
    for path, command in commands(typer.main.get_command(app)):
        for example in EXAMPLES[path[-1]]:
            _, _, words = example.rpartition("| ")[-1].partition(f"testbed {' '.join(path)}")
            given = command.make_context(path[-1], shlex.split(words)).params
            for parameter, names in inputs(command):
                value = given[parameter.name] or []
                for each in value if isinstance(value, list) else [value]:
                    own = each.name.startswith("my-") or each.name == "plan.json"
                    assert own or str(each) in names, example


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("predict two-dc-m", ["two-dc-metro"]),
        ("predict campus tiny-gpt-p", ["tiny-gpt-pp4", "tiny-gpt-pp8"]),
        ("knee x", []),
    ],
)
def test_completion_says_nothing_but_names(typed: str, offered: list[str], tmp_path: Path) -> None:
    """As bash asks; what stood on stderr would be shown in the line that is being typed."""
    words = {
        "_TESTBED_COMPLETE": "complete_bash",
        "COMP_WORDS": f"testbed {typed}",
        "COMP_CWORD": str(typed.count(" ") + 1),
    }
    command = [sys.executable, "-m", "testbed"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, offered, "")
