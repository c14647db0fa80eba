"""A name says one thing in the whole of testbed/, and a function is read without scrolling."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

TESTBED = Path(__file__).parents[2] / "testbed"

LONGEST = 60
"""Lines of a function, its signature and docstring included."""

SHARED_MODULES = {
    "model": {"model", "spec/model"},  # what users' models import their base from
    "study": {"cli/study", "study", "spec/study"},  # the file that says what the package runs
}
"""Name -> modules that may share it, beside a command and its module, and a package and its module."""

SHARED_CLASSES = {
    "options": {"lab/shaping/police", "lab/shaping/tbf"},  # pyroute2 finds nested attributes by this name
}
"""Name -> modules that may each have a class of it."""


@cache
def trees() -> dict[str, ast.Module]:
    """Module ("cli/run"; of a package "cli") -> its source."""
    found = {}
    for path in sorted(TESTBED.rglob("*.py")):
        name = path.relative_to(TESTBED).with_suffix("").as_posix().removesuffix("/__init__")
        if name not in ("__init__", "__main__"):
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def test_a_module_has_its_name_alone() -> None:
    of: dict[str, set[str]] = defaultdict(set)
    for module in trees():
        of[module.rpartition("/")[2]].add(module)
    shared = {name: modules for name, modules in of.items() if not _paired(name, modules)}
    assert {name: modules for name, modules in shared.items() if not modules <= SHARED_MODULES.get(name, set())} == {}


def _paired(name: str, modules: set[str]) -> bool:
    """Whether these are one thing: a module, its package if that has the same name, and its command."""
    ours = modules - {f"cli/{name}"}
    return len(ours) < 2 or ours == {name, f"{name}/{name}"}


def test_a_class_has_its_name_alone() -> None:
    of: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                of[node.name].append(module)
    shared = {name: modules for name, modules in of.items() if len(modules) > 1}
    assert {n: modules for n, modules in shared.items() if not set(modules) <= SHARED_CLASSES.get(n, set())} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{module}, {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}
