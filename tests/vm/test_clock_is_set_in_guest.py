"""The clock of dates is set forth and back while a job trains: nothing waits for it, and no time is measured by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from escapes import TOPOLOGY, WORKLOAD

from testbed.errors import ExitCode
from testbed.vm import kernel

ROOT = Path(__file__).parents[2]
LIMIT_S = 240

SETS_THE_CLOCK = """

import os, time
from pathlib import Path

steps = Path("/run/testbed/out/0/steps")
if steps.parent.is_dir() and not steps.exists():
    steps.touch()
    if os.fork() == 0:
        for number in range(4000):
            time.sleep(0.02)
            by_s = 3600.0 if number % 2 else -3700.0
            time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) + by_s)
            with steps.open("a") as file:
                file.write(f"{time.monotonic()}\\\\n")
        os._exit(0)


class Stranger(Mlp):
    pass
"""


def test_a_clock_that_is_set_all_the_time_changes_nothing(time_travel_kernel: kernel.Kernel, tmp_path: Path) -> None:
    """By the guest's root, 50 times a second, by an hour."""
    model = (ROOT / "examples/my_model.py").read_text(encoding="utf-8")
    (tmp_path / "stranger.py").write_text(model + SETS_THE_CLOCK.replace("\\\\n", "\\n"))
    (tmp_path / "job.yaml").write_text(WORKLOAD.replace("iterations: 1", "iterations: 3"))
    (tmp_path / "pair.yaml").write_text(TOPOLOGY)
    words = ["run", "pair.yaml", "job.yaml", "--clock", "virtual", "--out", "out", "--quiet", "--no-picture"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "testbed", *words],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(kernel.cache_directory().parents[1])},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == ExitCode.OK, done.stderr
    steps = len((tmp_path / "out/steps").read_text().splitlines())
    assert 50 < steps < 4000  # it ended before they did
    (row,) = json.loads((tmp_path / "out/comparison.json").read_text())["schedules"]
    assert row["trusted"]
    assert abs(row["error"]) < 1e-3
