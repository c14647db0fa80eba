"""The packages are in the order of CONTRIBUTING's table: none imports one below it, or a library that is another's.

Read from the sources, so that imports inside functions and those for types count too. What a user names (a model, a
policy) is looked up by its name where it is asked for, which is no import.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from testbed.pipeline.algorithms import ALGORITHMS
from testbed.results.destination import EARLIER_FILES, FILES

ROOT = Path(__file__).parents[2]

BESIDE = {
    "__main__": {"cli"},
    "progress": {"search"},
    "api": {"pipeline", "plan", "full_scale", "planning", "judge", "results", "spec", "study"},
}
"""Modules beside the packages that import some of them, all others import none: the program's start, the types of what
a solver says of its progress, and what `import testbed` gives."""

BEHIND = {
    "mininet": {"lab"},
    "pyroute2": {"lab"},
    "torch": {"train"},
    "numba": {"model"},
    "ortools": {"search", "schedule", "routing"},
    "yaml": {"spec"},
    "perfetto": {"results"},
    "rich": {"cli"},
    "typer": {"cli"},
}
"""Library -> the packages that may import it: the others ask these."""


@cache
def trees() -> dict[str, ast.Module]:
    """Module, by its full name -> its source."""
    found = {}
    for path in sorted((ROOT / "testbed").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """Module -> all that its source consists of."""
    return {module: list(ast.walk(tree)) for module, tree in trees().items()}


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import; `from package import module` counts as that module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports have full names"
            for each in node.names:
                full = f"{node.module}.{each.name}"
                yield node.lineno, full if full in trees() else str(node.module)


def packages() -> list[str]:
    """As CONTRIBUTING's table has them."""
    developing = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## The packages\n")[1].split("\n## ")[0]
    )
    return re.findall(r"^\| `(\w+)` \|", developing, re.MULTILINE)


def test_the_table_has_every_package() -> None:
    there = {path.parent.name for path in (ROOT / "testbed").glob("*/__init__.py")}
    assert sorted(packages()) == sorted(there)


def test_no_package_imports_one_below_it() -> None:
    order = packages()
    wrong = []
    for module, every in nodes().items():
        mine = module.split(".")[1] if module != "testbed" else ""
        allowed = set(order[: order.index(mine) + 1]) if mine in order else BESIDE.get(mine, set())
        for line, name in imported(every):
            of = name.split(".")
            if of[0] == "testbed" and len(of) > 1 and of[1] in order and of[1] not in allowed:
                wrong.append(f"{module}, line {line}: {name}")
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {name for _, name in imported(tree.body) if name in trees() and name != module}
        for module, tree in trees().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_libraries_stay_behind_their_packages() -> None:
    wrong = []
    for module, every in nodes().items():
        for line, name in imported(every):
            behind = BEHIND.get(name.split(".")[0])
            if behind is not None and module.split(".")[1] not in behind:
                wrong.append(f"{module}, line {line}: {name}")
    assert not wrong


def test_every_table_that_is_named_is_one_of_a_results_directory() -> None:
    """A name with a slip in it would read as a table that was not written."""
    named = {
        node.value
        for every in nodes().values()
        for node in every
        if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z_]+\.parquet", str(node.value))
    }
    assert named - set(EARLIER_FILES) == {name for name in FILES if name.endswith(".parquet")}


def test_contexts_are_entered_by_with() -> None:
    """Nobody enters a lab by hand: what is open is closed, whatever happens in between."""
    by_hand = [
        f"{module}, line {node.lineno}"
        for module, every in nodes().items()
        for node in every
        if isinstance(node, ast.Attribute)
        and node.attr in ("__enter__", "__exit__")
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    ]
    assert not by_hand


def test_no_other_module_decides_by_a_collectives_name() -> None:
    """Adding a collective touches algorithms.py only: what others must know of one is a field of its Algorithm."""
    decides = [
        f"{module}, line {node.lineno}"
        for module, every in nodes().items()
        if module not in ("testbed.pipeline.algorithms", "testbed.train.launcher")  # of a library with such a name
        for node in every
        if isinstance(node, ast.expr | ast.pattern)
        and any(isinstance(name, ast.Constant) and name.value in ALGORITHMS for name in _decided_by(node))
    ]
    assert not decides


def _decided_by(node: ast.expr | ast.pattern) -> list[ast.expr | None]:
    """What a comparison compares, the keys of a table, the alternatives of a type."""
    match node:
        case ast.Compare():
            return [node.left, *node.comparators]
        case ast.Dict():
            return list(node.keys)
        case ast.Subscript(slice=ast.Tuple() as alternatives):
            return list(alternatives.elts)
        case ast.MatchValue():
            return [node.value]
        case _:
            return []
