"""Two jobs that run freely under the virtual clock: every iteration begins and takes what is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from in_process import run_testbed
from one_boot import MARKS, Asked, Measured, planned

from testbed.plan.free_rounds import GAP_S
from testbed.planning import file
from testbed.planning.free_training import free_times
from testbed.planning.prediction import iteration_times, loads_of_case
from testbed.results.recheck import name_of, recheck

pytestmark = MARKS

TOPOLOGY = """
name: shared
datacenters: {paris: {nodes: 3}, warsaw: {nodes: 3}}
links: [{between: [paris, warsaw], delay: 5 ms, rate: 200 Mbit/s}]
"""
LONG = """
name: long
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2, data: 2}
microbatches: 4
microbatch_size: 1
pacing: {F: 9 ms, I: 7 ms, W: 8 ms}
message: 300 kB
memory: 8
iterations: 4
warmup: 1
schedules: [zb-h1]
"""
SHORT = """
name: short
model: {layers: 2, d_model: 16, heads: 2, sequence: 16}
parallelism: {pipeline: 2}
microbatches: 3
microbatch_size: 1
pacing: {F: {median: 6 ms, p95: 7 ms}, I: 5 ms, W: 4 ms}
message: 150 kB
memory: 8
iterations: 3
warmup: 2
receives: late
schedules: [1f1b]
seed: 2
"""
SLOW = TOPOLOGY.replace("200 Mbit/s", "10 Mbit/s").replace("5 ms", "1 ms")
SMALL = """
name: %s
model: {kind: linear, layers: 2, d_model: 8, sequence: 4}
parallelism: {pipeline: 2}
microbatches: 8
microbatch_size: 1
pacing: {F: %d ms, I: %d ms, W: 7 ms}
message: 30 kB
memory: 8
iterations: 4
warmup: 1
schedules: [1f1b]
"""


def asked(place: Path) -> dict[str, Asked]:
    small = {"one": SMALL % ("one", 11, 13), "two": SMALL % ("two", 9, 9)}
    for name, text in {"shared": TOPOLOGY, "long": LONG, "short": SHORT, "slow": SLOW, **small}.items():
        (place / f"{name}.yaml").write_text(text)
    cases = {"free": ("shared", "long", "short"), "slow": ("slow", *small)}
    return {
        called: Asked(planned(place, *(place / f"{name}.yaml" for name in names), "--rounds", "free"))
        for called, names in cases.items()
    }


def test_each_job_takes_what_is_predicted_of_its_mean(measured: Mapping[str, Measured]) -> None:
    plan, document, out, _ = measured["free"]
    (case,) = plan.cases
    assert case.iterations[1] > plan.jobs[1].workload.iterations, "the short job goes on until the long one is done"
    for row, predicted in zip(document["schedules"], iteration_times(plan, case), strict=True):
        assert row["trusted"], row
        assert row["statistic"] == "mean"
        assert row["predicted_s"] == pytest.approx(predicted)
        assert abs(row["error"]) <= 0.001, row
    assert {name_of(row): True for row in document["schedules"]} == {
        name: all(check.ok for check in checks) for name, checks in recheck(out).items()
    }
    assert file.read(out) == plan


def test_every_iteration_begins_and_takes_as_the_model_says(measured: Mapping[str, Measured]) -> None:
    plan, _, out, _ = measured["free"]
    (case,) = plan.cases
    times = free_times(plan, case, loads_of_case(plan, case))
    rows = pd.read_parquet(out / "iterations.parquet")
    for number, job in enumerate(plan.jobs):
        mine = rows[rows["job"] == number]
        assert len(mine) == job.workload.warmup + case.iterations[number]
        assert list(mine["warmup"]) == [iteration < job.workload.warmup for iteration in mine["iteration"]]
        assert np.abs(mine["makespan_s"].to_numpy() / times.times_s(number) - 1).max() <= 0.001
        assert np.abs(mine["begin_s"].to_numpy() - times.begins_s[number]).max() <= 1e-3
        gaps_s = mine["begin_s"].to_numpy()[1:] - (mine["begin_s"] + mine["makespan_s"]).to_numpy()[:-1]
        assert np.abs(gaps_s - GAP_S).max() <= 50e-6


def test_acknowledgements_of_notices_are_in_the_model_one_by_one(measured: Mapping[str, Measured]) -> None:
    """On a slow link each takes 53 us from the messages of other jobs: 0.4 ms in an iteration of each of these."""
    plan, _, out, _ = measured["slow"]
    (case,) = plan.cases
    times = free_times(plan, case, loads_of_case(plan, case))
    rows = pd.read_parquet(out / "iterations.parquet")
    for number in (0, 1):
        seen_s = rows[rows["job"] == number]["makespan_s"].to_numpy()
        assert np.abs(seen_s - times.times_s(number)).max() <= 20e-6


def test_rates_and_completion_times_are_of_the_same_iterations_predicted_and_measured(
    measured: Mapping[str, Measured],
) -> None:
    """Iterations differ, and which messages are awaited in which: the metric is of those that were, on both sides."""
    (case,) = measured["free"].document["fairness"]
    predicted, seen = case["predicted"], case["measured"]
    assert predicted["most_flows"] == seen["most_flows"]
    for name in ("rates_bps", "iteration_s", "all_reduce_s", "fct_median_s", "fct_p95_s", "fct_p99_s", "fct_worst_s"):
        for one, other in zip(predicted[name], seen[name], strict=True):
            assert (one is None) == (other is None), name
            assert one is None or one == pytest.approx(other, rel=2e-3), name


def test_links_carried_what_so_many_iterations_bring(measured: Mapping[str, Measured]) -> None:
    counted = pd.read_parquet(measured["free"].out / "links.parquet")
    assert (counted["wire_bytes"] / counted["planned_bytes"] - 1).abs().max() <= 0.01


def test_a_verdict_without_the_other_job_s_messages_would_not_pass(measured: Mapping[str, Measured]) -> None:
    """What is held against the run is the free prediction: that of rounds is another one."""
    plan, document, _, _ = measured["free"]
    (case,) = plan.cases
    together = replace(plan, rounds="together", cases=(replace(case, iterations=()),))
    off = [
        abs(row["measured_s"] / seconds - 1)
        for row, seconds in zip(document["schedules"], iteration_times(together, together.cases[0]), strict=True)
    ]
    assert max(off) > 0.005


def test_the_report_says_means_and_fits_a_terminal(measured: Mapping[str, Measured]) -> None:
    out = measured["free"].out
    shown = run_testbed("report", out, "--details", COLUMNS="80")
    assert shown.returncode == 0, shown.stderr
    assert max(len(line) for line in shown.stdout.splitlines() if str(out) not in line) <= 80
    assert (out / "timeline.svg").is_file()
