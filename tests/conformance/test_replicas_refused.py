"""A model that has other parameters than it says is refused where they would be exchanged, or cut, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_workers import scheduled, trained, workers

from testbed.errors import RunFailed
from testbed.planning.resolve import load_plan
from testbed.session.deadlines import Deadline

ROOT = Path(__file__).parents[2]


def test_a_model_with_more_parameters_than_it_says(tmp_path: Path) -> None:
    model = (ROOT / "examples/my_model.py").read_text()
    without_biases = model.replace("(self.width + 1) *", "self.width *")
    assert without_biases != model
    (tmp_path / "small.py").write_text(without_biases)
    text = (ROOT / "examples/my_job.yaml").read_text()
    (tmp_path / "job.yaml").write_text(text.replace("my_model.py", "small.py"))
    settings = ["parallelism={pipeline: 1, data: 2}", "schedules=[1f1b]", "pacing={F: 1 ms, I: 1 ms, W: 1 ms}"]
    plan = load_plan(ROOT / "topologies/two-dc-longhaul.yaml", tmp_path / "job.yaml", settings=settings)
    case, patience = scheduled(plan, "1f1b"), Deadline(60, "a test")
    with workers(2, tmp_path, patience) as loop, pytest.raises(RunFailed, match=r"stage 0 has \d+ parameters, and its"):
        trained(loop, case, 1, patience)


def test_a_model_whose_shards_are_not_where_it_says(tmp_path: Path) -> None:
    """It has room for what it exchanges, as long as its stages stay."""
    model = (ROOT / "examples/my_model.py").read_text()
    with_more = model.replace("(self.width + 1) *", "(self.width + 2) *")
    assert with_more != model
    (tmp_path / "large.py").write_text(with_more)
    text = (ROOT / "examples/my_job.yaml").read_text()
    (tmp_path / "job.yaml").write_text(text.replace("my_model.py", "large.py"))
    settings = [
        "parallelism={pipeline: 2, data: 2}",
        "schedules=[1f1b]",
        "pacing={F: 1 ms, I: 1 ms, W: 1 ms}",
        "memory=8",
    ]
    plan = load_plan(ROOT / "topologies/two-dc-longhaul.yaml", tmp_path / "job.yaml", settings=settings)
    case, patience = scheduled(plan, "1f1b"), Deadline(60, "a test")
    with workers(4, tmp_path, patience) as loop:
        trained(loop, case, 2, patience, {1: scheduled(plan, "zb-h1")})
        with pytest.raises(RunFailed, match=r"layers \d+ to \d+ have \d+ parameters, and stage_parameter_count says"):
            trained(loop, case, 2, patience, {1: scheduled(plan, "zb-v")})
