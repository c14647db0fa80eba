"""Plans of a boot that need the same containers and workers have them one after another, and come out as if alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from one_boot import MARKS, Asked, Measured, planned, train

pytestmark = MARKS

WITHIN_S = 5e-6
"""By so much what ran before in a boot may move a median (benchmarks/same_nanoseconds.py)."""


def plan_at(directory: Path, delay: str, *settings: str) -> Asked:
    words = ["two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--schedule", "zb-h1", "--iterations", "1"]
    words += ["--set", "warmup=1", "--set", "microbatches=4", "--set", f"topology.links.0.delay={delay}"]
    return Asked(planned(directory, *words, *settings), quiet=False)


def medians_s(measured: Measured) -> pd.Series:
    assert all(row["trusted"] for row in measured.document["schedules"]), measured.said
    rows = pd.read_parquet(measured.out / "iterations.parquet")
    return rows[~rows["warmup"]].groupby("schedule")["makespan_s"].median()


def test_cells_share_a_lab_and_measure_what_they_do_alone(tmp_path: Path) -> None:
    near, far = plan_at(tmp_path, "5 ms"), plan_at(tmp_path, "45 ms", "--set", "topology.links.0.rate=500 Mbit/s")
    more = plan_at(tmp_path, "5 ms", "--set", "topology.datacenters.paris.nodes=5")
    settings = ("message=300 kB", "streams=2", "receives=late", "pacing.F=7 ms", "memory=2", "recompute=true")
    unlike = plan_at(tmp_path, "20 ms", *(word for setting in settings for word in ("--set", setting)))
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    alone.mkdir()
    found = train(together, {"near": near, "far": far, "unlike": unlike, "more": more, "near again": near})
    said = found["near"].said
    assert (said.count("building two-dc-longhaul"), said.count("wiring two-dc-longhaul")) == (3, 2), said
    expected = medians_s(train(alone, {"far": far})["far"])
    assert (medians_s(found["far"]) - expected).abs().max() <= WITHIN_S
    (own := tmp_path / "unlike").mkdir()
    of_another_job = medians_s(train(own, {"unlike": unlike})["unlike"])
    assert (medians_s(found["unlike"]) - of_another_job).abs().max() <= WITHIN_S
    assert (medians_s(found["near again"]) - medians_s(found["near"])).abs().max() <= WITHIN_S
    assert expected.min() > medians_s(found["near"]).max()
    for one in found.values():
        assert {log.name for log in (one.out / "logs").iterdir()} == {f"rank{rank}.log" for rank in range(4)}
