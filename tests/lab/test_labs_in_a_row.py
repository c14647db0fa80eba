"""Labs in a row leave nothing behind: benchmarks/labs_in_a_row.py in short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]

IN_A_ROW = """
import os, sys, tempfile
from pathlib import Path
from networks import two_datacenters
from parts.labs_of_a_process import labs_in_a_row, labs_in_one_sandbox
tempfile.tempdir = sys.argv[1]
temporary = Path(sys.argv[1])
for found in labs_in_a_row(two_datacenters(), 4, temporary):
    print(*found, flush=True)
labs_in_one_sandbox(two_datacenters(), 4, temporary, 1)
"""


def test_labs_in_a_row_leave_nothing(tmp_path: Path) -> None:
    places = [str(ROOT / "benchmarks"), str(ROOT / "tests/lab")]
    done = subprocess.run(
        [sys.executable, "-c", IN_A_ROW, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": ":".join(places)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(rows) == 8
    for half in (rows[:4], rows[4:]):
        *things, memory_kib = (after - before for before, after in zip(half[1], half[3], strict=True))
        assert things == [0] * 6
        assert memory_kib < 1024
