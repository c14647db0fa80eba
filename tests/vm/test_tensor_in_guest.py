"""Replicas, stages and tensor ranks under the virtual clock: as the model says, with every byte accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from testbed.vm import kernel

pytestmark = pytest.mark.root

ROOT = Path(__file__).parents[2]


def test_measured_agrees_with_the_model(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    out = tmp_path / "results"
    words = ["run", "topologies/two-dc-cards.yaml", "workloads/tiny-gpt-pp4.yaml", "--clock", "virtual", "--json"]
    cube = ["--set=parallelism={pipeline: 2, data: 2, tensor: 2}", "--set=schedules=[zb-h1]", "--set=microbatches=4"]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words, *cube, "--iterations=2", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["schedules"]
    assert row["trusted"], row
    assert abs(row["error"]) <= 0.0005, row
    counted = pd.read_parquet(out / "links.parquet")
    assert (counted["wire_bytes"] / counted["planned_bytes"] - 1).abs().max() <= 0.01
    # tensor ranks act together, and each has its own messages
    actions = pd.read_parquet(out / "actions.parquet").query("source == 'measured'")
    starts = actions.assign(pair=actions["rank"] // 2).groupby(["iteration", "pair", "kind", "microbatch"])["start_s"]
    assert (starts.count() == 2).all()
    assert (starts.max() - starts.min()).max() == 0
    messages = pd.read_parquet(out / "messages.parquet").query("source == 'measured' and kind == 'activation'")
    assert set(zip(messages["source_rank"], messages["target_rank"], strict=True)) == {(0, 2), (1, 3), (4, 6), (5, 7)}
