"""The command line as a user calls it, where no root is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import run_testbed

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml"
PP8 = "workloads/tiny-gpt-pp8.yaml"


def test_predict_prints_a_table() -> None:
    """In a process of its own, as a user calls it."""
    command = [sys.executable, "-m", "testbed", "predict", LONGHAUL, PP4]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("gpipe", "1f1b", "zb-h1", "crosspipe-greedy"):
        assert name in done.stdout


def test_predict_as_json() -> None:
    done = run_testbed("predict", LONGHAUL, PP4, "--json", "--schedule", "1f1b", "--set", "microbatches=16")
    rows = json.loads(done.stdout)["schedules"]
    assert [row["schedule"] for row in rows] == ["1f1b"]
    assert set(rows[0]) == {
        "schedule",
        "label",
        "predicted_s",
        "predicted_p95_s",
        "predicted_low_s",
        "predicted_high_s",
        "bubble_predicted",
        "peak_in_flight_predicted",
        "speedup_predicted",
        "solver",
        "remarks",
        "full_scale",
    }
    assert rows[0]["solver"] is None


def test_predict_imports_neither_torch_nor_mininet() -> None:
    """What keeps it under a second and usable on any machine; nor any other command."""
    script = (
        "import sys; from testbed.cli import app;"
        f"app(['predict', '{LONGHAUL}', '{PP4}'], standalone_mode=False);"
        "heavy = ('torch', 'mininet', 'pyroute2', 'pandas', 'matplotlib', 'ortools');"
        "print([m for m in (*heavy, 'testbed.cli.run') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "nowhere.yaml", PP4), "nowhere.yaml: file: got 'No such file or directory'"),
        (("predict", LONGHAUL, PP4, "--set", "microbatches=0"), "microbatches: got 0, expected at least 1"),
        (("predict", LONGHAUL, PP4, "--set", "microbatches"), "--set: setting: got 'microbatches', expected KEY=VALUE"),
        (("predict", LONGHAUL, PP4, "--schedule", "fast"), "--schedule: name: got 'fast', expected one of gpipe"),
        (("predict", LONGHAUL, PP4, "--set", "pacing=none"), "pacing: got 'none', expected seconds"),
        (("predict", LONGHAUL, PP4, "--set", "topology.links=3"), "links: got 3"),
        (("run", LONGHAUL, PP4, "--set", "schedules=[gpipe]"), "schedule gpipe: rank 0, action 4"),
        (
            ("predict", LONGHAUL, PP4, "--set", "schedules=[{name: 1f1b}]"),
            "schedules.0.schedule: got 'nothing', expected",
        ),
        (("run", LONGHAUL, PP4, "--picture", "it.svg"), "--picture: file: got 'it.svg', expected none: a run draws"),
        (("run", LONGHAUL, PP4, "--iterations", "0"), "--iterations: got '0', expected at least 1"),
        (("schedule", "export", LONGHAUL, PP4, "--schedule", "1f1b", "--set", "pacing=none"), "pacing: got 'none'"),
        (("schedule", "compare", LONGHAUL, PP4, "--set", "pacing=none"), "pacing: got 'none'"),
        (
            ("schedule", "show", LONGHAUL, PP4, "--svg", "it.gif"),
            "--svg: file: got 'it.gif', expected a name that",
        ),
        (("report", "results", "--svg", "it.png"), "--svg: file: got 'it.png', expected a name that ends in .svg"),
        (("knee", LONGHAUL, PP4, "--picture", "it"), "--picture: file: got 'it', expected a name that ends in .svg or"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = run_testbed(*arguments)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not done.stdout


def test_virtual_time_without_pacing_is_refused() -> None:
    done = run_testbed("run", LONGHAUL, PP4, "--clock", "virtual", "--set", "pacing=none")
    assert done.returncode == 2, done.stderr
    assert "computation takes no virtual time" in done.stderr


def test_too_few_parameters_are_refused_before_a_guest_boots() -> None:
    few = ("--set", "parallelism.data=2", "--set", "data_parallel={parameters: 1 kB}")
    result = run_testbed("run", LONGHAUL, PP4, *few, "--clock", "virtual", "--schedule", "1f1b")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "data_parallel.parameters: got '1 kB'" in result.stderr


def test_the_virtual_clock_names_the_command_that_builds_its_kernel(tmp_path: Path) -> None:
    done = run_testbed("run", LONGHAUL, PP4, "--clock", "virtual", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 3, done.stderr
    assert "testbed kernel build" in done.stderr


def test_unknown_options_are_exit_code_2_too() -> None:
    assert run_testbed("predict", LONGHAUL, PP4, "--fastest").returncode == 2


def test_schedule_show_draws_a_grid_and_a_picture(tmp_path: Path) -> None:
    picture = tmp_path / "schedules.svg"
    done = run_testbed("schedule", "show", LONGHAUL, PP4, "--schedule", "zb-h1", "--svg", str(picture), COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert sum(line.startswith(("0 paris/0", "3 warsaw/1")) for line in done.stdout.splitlines()) == 2
    assert "<svg" in picture.read_text()
    order = run_testbed("schedule", "show", LONGHAUL, PP4, "--schedule", "1f1b", "--order").stdout
    assert "3 warsaw/1: 3F0 3B0 3F1 3B1" in order


def test_what_a_solver_proves_is_shown() -> None:
    """In the result on stdout, as a table and as JSON; on the way there, a line per better schedule on stderr."""
    small = ("--schedule", "crosspipe-ud", "--set", "microbatches=4", "--set", "schedules=[crosspipe-ud]")
    told = run_testbed("predict", LONGHAUL, PP4, *small)
    assert "crosspipe-ud: " in told.stdout
    assert "proven" in told.stdout
    assert told.stderr.startswith("crosspipe-ud: best ")
    for command in (("predict",), ("schedule", "compare")):
        done = run_testbed(*command, LONGHAUL, PP4, *small, "--json", "--quiet")
        assert done.stderr == ""
        (row,) = json.loads(done.stdout)["schedules"]
        solver = row["solver"]
        assert 0 < solver["bound_s"] <= solver["makespan_s"] == row["predicted_s"]
        assert solver["gap"] == pytest.approx(1 - solver["bound_s"] / solver["makespan_s"])
        assert solver["status"] in ("optimal", "gap", "time limit")
        assert solver["time_limit_s"] == 30.0


@pytest.mark.parametrize("columns", ["80", "120", "150"])
def test_compare_cuts_nothing_off(columns: str) -> None:
    done = run_testbed("schedule", "compare", LONGHAUL, PP8, "--schedule", "crosspipe-greedy", COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= max(int(columns), 80)


def test_a_datacenter_has_the_ranks_of_every_replica() -> None:
    done = run_testbed("predict", LONGHAUL, PP4, "--schedule", "1f1b", "--set", "parallelism.data=2")
    assert done.returncode == 0, done.stderr
    said = dict(re.findall(r"datacenter (\w+) +\W+ranks ([\d, ]*\d)", done.stdout))
    assert said == {"paris": "0, 1, 4, 5", "warsaw": "2, 3, 6, 7"}


def test_the_doctor_starts_without_mininet() -> None:
    """It is to say what is missing, so it may not need it."""
    script = (
        "import sys; sys.modules['mininet'] = sys.modules['pyroute2'] = None\n"
        "import testbed.cli, testbed.cli.plan_tables, testbed.lab.doctor, testbed.vm.guest_doctor\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_guest_imports_no_command_line() -> None:
    script = (
        "import sys, importlib; from testbed.vm import guest\n"
        "for name in (*guest.WARM_TASK, 'testbed.session.run'): importlib.import_module(name)\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('typer', 'rich') or m.startswith('testbed.cli')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "nowhere.json"), "nowhere.json: file: got 'No such file or directory', expected a readable plan.json"),
        (("run", LONGHAUL), "WORKLOAD: got 'nothing', expected a workload after the topology"),
        (("run", "plan.json", "--iterations", "3"), "plan.json: --iterations: got '3', expected TOPOLOGY and"),
        (
            ("plan", LONGHAUL, PP4, "-o", "/proc/nowhere/plan.json"),
            "--out: file: got '/proc/nowhere/plan.json', expected a file that can be",
        ),
    ],
)
def test_a_plan_that_cannot_be_had(arguments: tuple[str, ...], message: str) -> None:
    done = run_testbed(*arguments)
    assert done.returncode == 2, done
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_plan_is_written_and_says_what_it_holds(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = run_testbed("plan", LONGHAUL, PP4, "-o", str(out), "--clock", "virtual", "--seed", "7", "--schedule", "1f1b")
    assert done.returncode == 0, done.stderr
    document = json.loads(out.read_text())
    assert document["clock"] == {"name": "virtual", "seed": 7}
    assert [case["label"] for case in document["cases"]] == ["1f1b"]
    assert document["cases"][0]["jobs"][0]["rows"][3].startswith("3F0 3B0 3F1 3B1")
    assert f"written to {out}" in done.stdout


def test_ctrl_c_is_one_word_and_exit_code_4_in_every_command() -> None:
    script = (
        "import os, signal, sys, testbed.cli as cli\n"
        "cli.app.command('wait')(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['testbed', 'wait']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "interrupted\n")


def test_schedules_that_take_the_same_are_not_ahead_of_each_other() -> None:
    done = run_testbed("schedule", "compare", LONGHAUL, PP4, "--schedule", "geopipe", "--schedule", "1f1b")
    assert done.returncode == 0, done.stderr
    assert "0.0% ahead" not in done.stdout
    assert "less than 0.05% apart" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("schedule", "compare", "--schedule", "1f1b"),
        ("schedule", "show", "--schedule", "1f1b"),
        ("knee", "--points", "3", "--schedule", "1f1b"),
        ("tune", "--microbatch-size", "4"),
        ("advise", "--schedule", "1f1b", "--axes", "4x1x1", "--microbatch-size", "4"),
        ("route",),
    ],
)
def test_what_compares_links_as_they_are_first_says_so_where_they_change(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """`predict` has another time of the same topology."""
    happens = ("--set", "topology.events=[link paris--warsaw delay 60 ms at 2, rank 1 slower x2 at 0]")
    place = 2 if words[0] == "schedule" else 1
    command: list[str | Path] = [*words[:place], ROOT / LONGHAUL, ROOT / PP4, *words[place:], *happens]
    done = run_testbed(*command, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert "warning: links or ranks change (" in said
    assert "`testbed predict` has those of every iteration" in said
    assert "links or ranks change" not in "".join(run_testbed(*command[:-2], directory=tmp_path)[1:])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "--clock", "virtual", "--out", "/proc/none"), "--out: directory: got '/proc/none', expected a place"),
        (("run", "--out", "README.md"), "--out: directory: got 'README.md', expected a directory"),
        (("run", "--out", "docs"), "--out: directory: got 'docs', expected a new or empty directory"),
        (("plan", "-o", "/proc/plan.json"), "--out: file: got '/proc/plan.json', expected a file that can be written"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_before_a_solver_starts(
    arguments: tuple[str, ...], expected: str
) -> None:
    command, *words = arguments
    slow = ("--set", "schedules=[{schedule: crosspipe-ud, time_limit_s: 400}]")
    done = run_testbed(command, LONGHAUL, PP4, *words, *slow, "--quiet")
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_a_model_without_the_methods_that_train_is_refused_before_a_solver_starts(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "from testbed.spec.model import ModelSpec\n"
        "class Half(ModelSpec):\n"
        "    def boundary_shape(self, microbatch_size): return (microbatch_size, 4)\n"
        "    def parameter_count(self): return 100\n"
        "    def layer(self, index): pass\n"
    )
    model = f"model={{kind: '{tmp_path / 'half.py'}:Half', layers: 4}}"
    slow = ("--set", "schedules=[{schedule: crosspipe-ud, time_limit_s: 400}]")
    done = run_testbed("run", LONGHAUL, PP4, "--set", model, *slow, "--quiet", "--out", str(tmp_path / "out"))
    assert done.returncode == 2, done.stderr
    assert "model.kind" in done.stderr
    assert "a class that also has batch, loss" in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_a_command_reads_it_does_not_write_over(tmp_path: Path) -> None:
    topology, workload = (Path(shutil.copy(ROOT / each, tmp_path)) for each in (LONGHAUL, PP4))
    run = Path(shutil.copytree(ROOT / "tests/recorded/format-3-run", tmp_path / "run"))
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for words in (
        ("plan", topology, workload, "-o", topology),
        ("schema", "topology", "--out", topology),
        ("schedule", "export", topology, workload, "--schedule", "1f1b", "--out", workload),
        ("report", run, "--trace", run / "actions.parquet"),
    ):
        done = run_testbed(*words)
        assert done.returncode == 2, words
        assert len(done.stderr.splitlines()) == 1
    assert kept == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(2):  # what another command has written
        assert run_testbed("plan", topology, workload, "-o", tmp_path / "plan.json").returncode == 0
        assert run_testbed("predict", tmp_path / "plan.json").returncode == 0


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("def boundary_shape(self, microbatch_size): return 1 / 0", "a model that works (ZeroDivisionError in line 3"),
        ("def boundary_shape(self, microbatch_size): return 'wide'", "lengths of a tensor by boundary_shape"),
        ("def parameter_count(self): return 2.5", "a whole number, 0 or more, by parameter_count"),
        (
            "def stage_layers(self, stage, n_stages): return range(stage, stage + 1) if n_stages > 1 else range(8)",
            "all layers of range(0, 8) in 4 stages, each once and in order",
        ),
    ],
)
def test_a_model_that_describes_itself_wrongly_is_refused_before_a_run(method: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        f"from testbed.train.linear import LinearChain\nclass Own(LinearChain):\n    {method}\n"
    )
    model = f"model={{kind: '{tmp_path / 'own.py'}:Own', layers: 8, d_model: 8, sequence: 8}}"
    words = ("--set", model, "--schedule", "1f1b", "--clock", "virtual", "--quiet", "--out", tmp_path / "out")
    done = run_testbed("run", LONGHAUL, PP4, *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_planner_that_plans_nothing_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from testbed.routing.planner import Planner\n\ndef nothing(task):\n    return None\n\nOWN = Planner(nothing)\n"
    )
    own = f"{tmp_path / 'own.py'}:OWN"
    done = run_testbed("route", "geopipe-three-region", "tiny-gpt-pp4", "--policy", own, "--schedule", "1f1b")
    assert done.returncode == 2, done.stderr
    assert "a planner of PlannedCases, not NoneType" in done.stderr
