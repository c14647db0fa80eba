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
JOBS = "varying-jobs"
TOPOLOGY = """
name: shared
datacenters: {paris: {nodes: 2}, warsaw: {nodes: 2}}
links: [{between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}]
"""
COMMON = """
model: {layers: 2, d_model: 32, heads: 2, sequence: 32}
parallelism: {pipeline: 2}
microbatches: 6
microbatch_size: 2
memory: 8
message: 250 kB
schedules: [zb-h1]
iterations: 5
warmup: 1
"""
WIDE = "name: wide\npacing: {F: {median: 10 ms, p95: 14 ms}, I: 10 ms, W: 10 ms}"
NARROW = "name: narrow\nseed: 2\npacing: {F: 8 ms, I: {median: 8 ms, p95: 9 ms, each: iteration}, W: 8 ms}"
NEAR = 5e-4
PRESET = "variable-length"


def asked(place: Path) -> dict[str, Asked]:
    found = {}
    for name, settings in SETTINGS.items():
        (place / name).mkdir()
        words = [word for setting in (*settings, "iterations=5", "warmup=1") for word in ("--set", setting)]
        found[name] = Asked(planned(place / name, TWO, PP4, *words, "--schedule", "1f1b", "--schedule", "zb-h1"))
    preset = varying_slots.training(PRESET, 3, place).plan
    found[PRESET] = Asked(with_clock(preset, Clock("virtual")))
    (place / "varying-jobs").mkdir()
    files = {name: place / f"varying-{name}.yaml" for name in ("shared", "wide", "narrow")}
    for name, text in (("shared", TOPOLOGY), ("wide", WIDE + COMMON), ("narrow", NARROW + COMMON)):
        files[name].write_text(text)
    found[JOBS] = Asked(planned(place / "varying-jobs", *files.values(), "--arrive", "narrow@2"))
    return found


@pytest.mark.parametrize("name", [*SETTINGS, JOBS])
def test_every_iteration_takes_what_was_predicted_of_it(measured: Mapping[str, Measured], name: str) -> None:
    plan, document, out, _ = measured[name]
    files, names = RunFiles(out), [job.name for job in plan.jobs]
    for row in document["schedules"]:
        assert row["trusted"], row["reasons"]
        number = names.index(row["job"]) if "job" in row else 0
        rows = [one for one in files.rows(row["label"], number) if not one.warmup]
        times_s = np.array([one.makespan_s for one in rows])
        own_s = predicted_times_s(files.parts(row["label"], "predicted")[number], [one.iteration for one in rows])
        assert np.ptp(own_s) > 0.01 * np.median(own_s), "they differ on purpose"
        assert np.abs(times_s / own_s - 1).max() < NEAR
        assert row["measured_p95_s"] == np.percentile(times_s, 95)
        assert row["predicted_p95_s"] == np.percentile(own_s, 95)
        assert row["measured_s"] < row["measured_p95_s"]
    if name == JOBS:  # one arrives behind two iterations of the other, and has draws of its own from then on
        assert [row["label"] for row in document["schedules"]] == ["zb-h1", *["zb-h1 with narrow"] * 2]


def test_a_preset_has_the_distribution_and_the_order_of_the_model(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured[PRESET]
    place = out.with_name(PRESET)
    place.symlink_to(out.name)  # the benchmark knows a plan by its directory
    rows = varying_slots.held(collected(out.parent, {PRESET: document}, {}))
    assert len(rows) == 4
    assert all(claim.passed for claim in varying_slots.claims(rows, 1, 1))
    turned = [row._replace(measured=rows[-1 - place].measured) for place, row in enumerate(rows)]
    assert not any(claim.passed for claim in varying_slots.claims(turned, 1, 1))
