"""A plan that brings code along: nothing of it is run before the user has said that it may."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import Done, run_testbed

from testbed.errors import ExitCode
from testbed.planning import file

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
MODEL = (ROOT / "examples/my_model.py").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have one."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def called(directory: Path, *words: str) -> Done:
    return run_testbed(*words, directory=directory)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stranger's plan, whose model's file writes `mark` when it is run, and one without code."""
    directory = tmp_path_factory.mktemp("plans")
    job = str(ROOT / "examples/my_job.yaml")
    for name, workload in (("code.json", job), ("plain.json", "tiny-gpt-pp4")):
        made = called(directory, "plan", "two-dc-longhaul", workload, "--schedule", "1f1b", "-o", name, "--quiet")
        assert made.returncode == 0, made.stderr
    document = json.loads((directory / "code.json").read_text())

    def poisoned(value: object) -> object:
        if isinstance(value, dict):
            return {key: poisoned(one) for key, one in value.items()}
        if isinstance(value, list):
            return [poisoned(one) for one in value]
        return f"open('mark', 'w').close()\n{value}" if value == MODEL else value

    text = json.dumps(poisoned(document))
    assert "open('mark'" in text
    (directory / "code.json").write_text(text.replace("my_model.py:", "my_model\\u002epy\\u003a"))
    return directory


def test_code_of_a_plan_is_named_without_running_it(plans: Path) -> None:
    found = {reference.partition(":")[0].rpartition("/")[2] for reference in file.code_in(plans / "code.json")}
    assert "my_model.py" in found
    assert file.code_in(plans / "plain.json") == ()
    assert not (plans / "mark").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("predict",),
        ("route",),
        ("run", "--clock", "virtual"),
        ("shell",),
        ("baseline", "save", "mine"),
    ],
    ids=" ".join,
)
def test_without_a_terminal_it_is_refused_and_nothing_run(plans: Path, words: tuple[str, ...]) -> None:
    done = called(plans, *words, "code.json")
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr.startswith("error: code.json: code: got ")
    assert "--trust" in done.stderr
    assert not (plans / "mark").exists()
    assert not (plans / "results").exists()


def test_a_run_with_code_is_not_kept_without_a_word(plans: Path) -> None:
    run = plans / "run"
    run.mkdir()
    (run / file.NAME).write_bytes((plans / "code.json").read_bytes())
    done = called(plans, "baseline", "save", "mine", "--run", "run")
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr.startswith("error: run: code: got ")
    assert not (plans / "mark").exists()


def test_with_trust_it_is_predicted_as_before(plans: Path) -> None:
    done = called(plans, "predict", "code.json", "--trust", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schedules"][0]["predicted_s"] > 0
    assert (plans / "mark").exists()
    (plans / "mark").unlink()


def test_all_that_ask_for_trust_take_it(plans: Path) -> None:
    """A shell said that it may be given, and had no such option."""
    for words in (("predict",), ("route",), ("run",), ("shell",), ("baseline", "save", "mine")):
        done = called(plans, *words, "none.json", "--trust")
        assert "none.json" in done.stderr, done.stderr


def test_a_plan_without_code_wants_no_trust(plans: Path) -> None:
    assert called(plans, "predict", "plain.json").returncode == 0


@pytest.mark.parametrize(("answer", "code"), [("y", ExitCode.OK), ("n", ExitCode.BAD_INPUT)])
def test_at_a_terminal_the_user_is_asked(plans: Path, answer: str, code: ExitCode) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    command = [sys.executable, "-P", "-m", "testbed", "predict", "code.json"]
    try:
        done = subprocess.run(
            command, cwd=plans, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, timeout=LIMIT_S, check=False
        )
        asked = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == code
    assert "Run it?" in asked
    assert (plans / "mark").exists() == (answer == "y")
    (plans / "mark").unlink(missing_ok=True)
