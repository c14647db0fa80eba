"""Every benchmark is written on the harness, and its help fits a terminal of 80 columns."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
import shlex
import sys
from collections import defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import figures
import provisioning
from harness.options import ROOT

BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = {path.name: path for path in sorted(BENCHMARKS.glob("*.py"))}
PAGE = "figures.py"
"""Makes a page of what benchmarks record, and records nothing."""
MEASURING = [name for name in PROGRAMS if name != PAGE]
OWN = {"ArgumentParser", "Table"}
"""What no benchmark makes for itself."""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """What each program says of its options, all in this process, so that torch is imported once."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        for name, path in PROGRAMS.items():
            patch.setattr(sys, "argv", [str(path), "--help"])
            said = io.StringIO()
            with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
                runpy.run_path(str(path), run_name="__main__")
            assert ended.value.code == 0, name
            found[name] = said.getvalue()
    return found


def test_help_fits_a_terminal_and_says_what_is_asked(helps: dict[str, str]) -> None:
    for name, said in helps.items():
        assert max(map(len, said.splitlines())) <= 80, name
        assert f"python benchmarks/{name}" in said, name
        assert ("[--record [NAME]]" in said) == (name != PAGE), name


def test_commands_of_the_page_have_options_that_there_are(helps: dict[str, str]) -> None:
    asked: dict[str, set[str]] = defaultdict(set)
    for words in (shlex.split(figure.origin.command) for figure in figures.records()):
        if words[0] == "python":
            asked[Path(words[1]).name] |= {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
    assert asked
    for name, wanted in asked.items():
        assert wanted <= set(re.findall(r"--[a-z][a-z-]*", helps[name])), name


@pytest.mark.parametrize("name", MEASURING)
def test_every_benchmark_takes_options_and_ends_by_the_harness(name: str) -> None:
    tree = ast.parse(PROGRAMS[name].read_text(encoding="utf-8"))
    (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    ends = [node.value for node in ast.walk(main) if isinstance(node, ast.Return) and node.value is not None]
    assert "options.parser" in calls(main)
    assert {"finish", "report.close"} & set().union(*map(calls, ends))
    assert not [call for call in calls(tree) if call.rpartition(".")[2] in OWN]


def calls(tree: ast.AST) -> set[str]:
    """What is called in it, as it is written."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def test_a_new_debian_gets_the_packages_that_readme_says() -> None:
    assert f"`apt-get install {provisioning.PACKAGES}`" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(provisioning.TESTS) <= {path.name for path in (ROOT / "tests/unit").iterdir()}


def test_what_is_no_program_lies_in_a_directory_of_its_own() -> None:
    for path in sorted(BENCHMARKS.glob("*/*.py")):
        assert '__name__ == "__main__"' not in path.read_text(encoding="utf-8"), path
    for name, path in PROGRAMS.items():
        assert '__name__ == "__main__"' in path.read_text(encoding="utf-8"), name
