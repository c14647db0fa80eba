"""Slots that are drawn, on the virtual clock: every iteration takes what was predicted of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from one_boot import MARKS, ROOT, Asked, Measured, planned

from testbed.results.run_files import RunFiles
from testbed.trace.predictions import predicted_times_s

pytestmark = MARKS

TWO, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
SPREAD = "pacing={F: {median: 20 ms, p95: 30 ms}, I: 20 ms, W: {samples: [18 ms, 20 ms, 27 ms], each: microbatch}, %s}"
SETTINGS = {
    "varying": [SPREAD % "factors: [1, 1, 1.2, 1]"],
    "varying-replicas": [
        "parallelism={pipeline: 2, data: 2, tensor: 1}",
        SPREAD % "factors: [[1, 1], [1.3, 1.1]]",
        "data_parallel.parameters=1 MB",
    ],
}
NEAR = 5e-4


def asked(place: Path) -> dict[str, Asked]:
    found = {}
    for name, settings in SETTINGS.items():
        (place / name).mkdir()
        words = [word for setting in (*settings, "iterations=8", "warmup=1") for word in ("--set", setting)]
        found[name] = Asked(planned(place / name, TWO, PP4, *words, "--schedule", "1f1b", "--schedule", "zb-h1"))
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_every_iteration_takes_what_was_predicted_of_it(measured: Mapping[str, Measured], name: str) -> None:
    _, document, out, _ = measured[name]
    files = RunFiles(out)
    for row in document["schedules"]:
        assert row["trusted"], row["reasons"]
        rows = [one for one in files.rows(row["label"], 0) if not one.warmup]
        times_s = np.array([one.makespan_s for one in rows])
        own_s = predicted_times_s(files.trace(row["label"], "predicted"), [one.iteration for one in rows])
        assert np.ptp(own_s) > 0.01 * np.median(own_s), "they differ on purpose"
        assert np.abs(times_s / own_s - 1).max() < NEAR
        assert row["measured_p95_s"] == np.percentile(times_s, 95)
        assert row["predicted_p95_s"] == np.percentile(own_s, 95)
        assert row["measured_s"] < row["measured_p95_s"]
