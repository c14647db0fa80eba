"""The examples for CI: they parse, name what there is, and do what docs/ci.md says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

from testbed.baseline import history
from testbed.cli import app
from testbed.spec import yaml_tree

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/ci"
FILES = ("topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml")
KEPT = "small-longhaul"


def parsed(name: str) -> Any:
    return yaml_tree.parse((EXAMPLES / name).read_text(), name)


def github_steps() -> list[dict[str, Any]]:
    (job,) = parsed("github.yml")["jobs"].values()
    steps: list[dict[str, Any]] = job["steps"]
    return steps


def commands() -> Iterator[str]:
    """Every command line in the examples and on the page."""
    yield from (line for step in github_steps() for line in step.get("run", "").splitlines())
    yield from parsed("gitlab.yml")["baselines"]["script"]
    page = (ROOT / "docs/ci.md").read_text()
    yield from (line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines())
    for script in EXAMPLES.glob("*.sh"):
        yield from script.read_text().replace("\\\n", " ").splitlines()


def test_the_workflow_caches_the_kernel_by_its_key() -> None:
    steps = github_steps()
    numbers = {step.get("run", "").partition("  #")[0]: number for number, step in enumerate(steps)}
    (cache,) = [step for step in steps if step.get("with", {}).get("path") == ".cache/testbed/kernel"]
    (keyed,) = [step for step in steps if "testbed kernel key" in step.get("run", "")]
    assert cache["with"]["key"] == f"${{{{ steps.{keyed['id']}.outputs.key }}}}"
    order = [
        steps.index(keyed),
        steps.index(cache),
        numbers[".venv/bin/testbed kernel build"],
        numbers["sh ci/check.sh"],
    ]
    assert order == sorted(order)
    assert parsed("github.yml")["jobs"]["baselines"]["container"]["options"] == "--privileged"


def test_the_pipeline_keeps_kernel_history_and_reports() -> None:
    job = parsed("gitlab.yml")["baselines"]
    assert [cache["paths"] for cache in job["cache"]] == [[".cache/testbed/kernel"], ["testbed-history"]]
    assert job["artifacts"]["reports"]["junit"] == ["testbed-check/junit.xml", "testbed-check/tests.xml"]


def test_every_command_of_the_testbed_is_one_with_these_options() -> None:
    root: Any = typer.main.get_command(app)
    seen = set()
    for line in commands():
        for found in re.findall(r"bin/testbed\"? ([^|)&;#]*)", line):
            words, command, path = found.replace('"$@"', "").replace("$OUT/", "").replace('"', "").split(), root, []
            while hasattr(command, "commands"):
                path.append(words.pop(0))
                command = command.commands[path[-1]]
            command.make_context(path[-1], [word for word in words if word != "||"])
            seen.add(" ".join(path))
    assert seen == {"doctor", "kernel build", "kernel key", "baseline check", "baseline history"}


def test_the_packages_are_those_of_the_projects_own_set_up() -> None:
    def packages(file: Path, *names: str) -> set[str]:
        text = file.read_text()
        return {word for name in names for word in re.findall(rf'^{name}="([^"]*)"', text, re.MULTILINE)[0].split()}

    ours = packages(ROOT / "scripts/provision.sh", "PACKAGES", "GUEST_PACKAGES")
    theirs = packages(EXAMPLES / "setup.sh", "LABS", "GUESTS")
    assert theirs <= ours
    # make is for the Makefile; the other two are for --vm, and for machines that cannot have Linux 7.2
    assert ours - theirs == {"make", "user-mode-linux", "linux-source-6.12"}


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.sh")))
def test_scripts_are_those_of_a_plain_shell(script: str) -> None:
    subprocess.run(["sh", "-n", EXAMPLES / script], check=True, timeout=30)
    assert os.access(EXAMPLES / script, os.X_OK)


def check(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`check.sh` in another repository, with the testbed of this process."""
    environment = {**os.environ, "VENV": sys.prefix, "OUT": "out", "HISTORY": "kept"}
    line = ["sh", str(EXAMPLES / "check.sh"), *options]
    return subprocess.run(
        line, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_the_check_leaves_what_the_page_says(tmp_path: Path) -> None:
    place = tmp_path / "results/baselines" / KEPT
    shutil.copytree(ROOT / "results/baselines" / KEPT, place)
    done = check(tmp_path, "--predict-only")
    assert done.returncode == 0, done.stdout + done.stderr
    comparison = place / "comparison.json"
    comparison.write_text(comparison.read_text().replace('"predicted_s": 0.', '"predicted_s": 0.1'))
    done = check(tmp_path, "--predict-only")
    assert done.returncode == 1, done.stdout + done.stderr
    page = (ROOT / "docs/ci.md").read_text()
    told = {
        name for group in re.findall(r"^\| (`testbed-check/[^|]*) \|", page, re.MULTILINE) for name in group.split(", ")
    }
    assert {name.strip("`").removeprefix("testbed-check/") for name in told} == {
        path.name for path in (tmp_path / "out").iterdir()
    }
    assert [one.within_tolerance for one in history.read(tmp_path / "kept")] == [True, False]
    assert ElementTree.parse(tmp_path / "out/junit.xml").getroot().get("failures") == "2"
    assert len(json.loads((tmp_path / "out/github-benchmark.json").read_text())) == 2
    assert "0/1" in (tmp_path / "out/baselines.svg").read_text()
    assert "small-longhaul: 1f1b: slower" in done.stdout


def test_a_check_that_is_refused_draws_nothing(tmp_path: Path) -> None:
    done = check(tmp_path, "--predict-only")
    assert done.returncode == 2
    assert "expected a directory with baselines" in done.stderr
    assert not (tmp_path / "kept/history.jsonl").exists()


def test_the_example_of_tests_passes_where_the_machine_can(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the kernel of the virtual clock, and without its lab, which tests/lab has."""
    for name in (*FILES, f"results/baselines/{KEPT}"):
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, pytester.path / name)
    pytester.makeini("[pytest]")  # its directory is the root then
    shutil.copy(EXAMPLES / "test_training.py", pytester.path / "test_training.py")
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "no-kernel"))
    done = pytester.runpytest_subprocess("-k", "not warsaw", "--strict-markers")
    done.assert_outcomes(passed=5, skipped=1, deselected=1)
