"""A guest runs schedules, a model and a shaper of the user's own: what their files hold travels."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from one_boot import MARKS, Asked, Measured

from testbed.planning import file

pytestmark = MARKS

ROOT = Path(__file__).parents[2]


def asked(place: Path) -> dict[str, Asked]:
    """Planned from another directory than ours."""
    mine = place / "mine"
    shutil.copytree(ROOT / "examples", mine)
    words = ["plan", str(ROOT / "topologies/two-dc-longhaul.yaml"), "mine/my_job.yaml", "--clock", "virtual"]
    words += ["--iterations", "2", "-o", "plan.json"]
    words += ["--schedule", "mine/my_schedule.py:eager", "--schedule", "by hand", "--schedule", "eager lead=3"]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        cwd=place,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {"examples": Asked(file.read(place / "plan.json"), f"{mine}/my_shaper.py:Recording")}


def test_all_examples_at_once(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured["examples"]
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
