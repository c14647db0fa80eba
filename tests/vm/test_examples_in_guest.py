"""A guest runs schedules, a model and a shaper of the user's own: what their files hold travels."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.vm import kernel

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]


def test_all_examples_at_once(time_travel_kernel: kernel.Kernel, tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "out"
    shutil.copytree(ROOT / "examples", mine)
    words = ["run", str(ROOT / "topologies/two-dc-longhaul.yaml"), "mine/my_job.yaml", "--clock", "virtual", "--json"]
    words += ["--iterations", "2", "--out", str(out), "--shaper", "mine/my_shaper.py:Recording"]
    words += ["--schedule", "mine/my_schedule.py:eager", "--schedule", "by hand", "--schedule", "eager lead=3"]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["shaper"] == "recording"
    assert {row["label"]: row["schedule"] for row in document["schedules"]} == {
        "eager": "mine/my_schedule.py:eager",
        "by hand": "my_schedule.csv",
        "eager lead=3": "my_schedule.py:eager",
    }
    assert list(json.loads((out / "schedules.json").read_text())) == ["eager", "by hand", "eager lead=3"]
    for row in document["schedules"]:
        assert abs(row["error"]) <= 0.001, row
    model = json.loads((out / "manifest.json").read_text())["workload_specs"][0]["model"]
    assert (model["kind"], model["width"]) == ("my_model.py:Mlp", 64)
