"""Nothing waits or measures by the clock that may be set: it is read for names and stamps alone."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

STAMPS = {
    "baseline/history.py",
    "baseline/keep.py",
    "baseline/junit.py",
    "cli/run.py",
    "results/provenance.py",
    "source.py",
    "vm/command.py",
}
"""Modules that say when something was, or how old a file is."""

WITNESS = "lab/machine_witness.py"
"""Which holds it against the steady clock, to tell that it was set."""

STAMPED = "lab/echoes.py"
"""Which has the kernel's stamps of arrival, by that clock, and takes off at once how long ago that was."""

OF_TIME = {"time", "time_ns", "localtime", "gmtime", "ctime", "CLOCK_REALTIME"}
OF_DATES = {"now", "utcnow", "today"}


def readings(path: Path) -> list[int]:
    """Lines that read the clock of dates."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known = {"time": OF_TIME, "datetime": OF_DATES, "date": OF_DATES}
            found += [node.lineno] if node.attr in known.get(node.value.id, ()) else []
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [node.lineno for name in node.names if name.name in OF_TIME]
    return sorted(found)


def test_only_stamps_read_it() -> None:
    package = ROOT / "testbed"
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if readings(path)}
    assert found == STAMPS | {WITNESS, STAMPED}


def test_a_reading_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import time\nuntil = time.time() + 3\nfrom time import time_ns\n")
    (tmp_path / "b.py").write_text("from datetime import datetime\nbegan = datetime.now()\n")
    assert readings(tmp_path / "a.py") == [2, 3]
    assert readings(tmp_path / "b.py") == [2]
