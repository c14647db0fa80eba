"""The same nanoseconds from two paths, and what is said of a guest that fails while nothing else is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.vm import kernel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]  # a boot takes minutes on a machine that has much to do

ROOT = Path(__file__).parents[2]
DEADLINE_S = 800


def test_a_plan_takes_the_same_nanoseconds_from_any_path(time_travel_kernel: kernel.Kernel) -> None:
    program = ROOT / "benchmarks/same_nanoseconds.py"
    words = ["--plans", "1", "--schedules", "2", "--uids", "0", "--places", "2", "--jobs", "2"]
    done = subprocess.run(
        [sys.executable, str(program), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 of 1 plans byte for byte the same") == 2, done.stdout


def test_a_quiet_run_that_fails_says_why_and_can_be_repeated(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "from testbed.errors import RunFailed\n"
        "class Broken:\n"
        "    name, pid = 'broken', None\n"
        "    def build(self, links): raise RunFailed('no link today')\n"
        "    def counters(self, *, reset_peaks=False): return []\n"
        "    def change(self, direction, **values): pass\n"
        "    def describe(self): return []\n"
        "    def close(self): pass\n"
    )
    words = ["topologies/two-dc-metro.yaml", "workloads/tiny-gpt-pp4.yaml", "--schedule", "1f1b", "--clock", "virtual"]
    words += ["--shaper", f"{broken}:Broken", "--out", str(tmp_path / "out"), "--quiet"]
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "testbed", "run", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S / 2,
            check=False,
        )
        assert done.returncode == 4, done.stderr
        assert "no link today" in done.stderr
