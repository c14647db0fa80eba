"""Slots that are drawn, on the virtual clock: every iteration takes what was predicted of it, and the quick form of
benchmarks/varying_slots.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from one_boot import MARKS, ROOT, Asked, Measured, planned

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import varying_slots
from harness.boots import collected

from testbed.plan.plan import Clock
from testbed.planning.resolve import with_clock
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
PRESET = "variable-length"


def asked(place: Path) -> dict[str, Asked]:
    found = {}
    for name, settings in SETTINGS.items():
        (place / name).mkdir()
        words = [word for setting in (*settings, "iterations=8", "warmup=1") for word in ("--set", setting)]
        found[name] = Asked(planned(place / name, TWO, PP4, *words, "--schedule", "1f1b", "--schedule", "zb-h1"))
    preset = varying_slots.training(PRESET, 6, place).plan
    return found | {PRESET: Asked(with_clock(preset, Clock("virtual")))}


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


def test_a_preset_has_the_distribution_and_the_order_of_the_model(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured[PRESET]
    place = out.with_name(PRESET)
    place.symlink_to(out.name)  # the benchmark knows a plan by its directory
    rows = varying_slots.held(collected(out.parent, {PRESET: document}, {}))
    assert len(rows) == 4
    assert all(claim.passed for claim in varying_slots.claims(rows, 1, 1))
    turned = [row._replace(measured=rows[-1 - place].measured) for place, row in enumerate(rows)]
    assert not any(claim.passed for claim in varying_slots.claims(turned, 1, 1))
