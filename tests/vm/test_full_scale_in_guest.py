"""A workload at full scale in virtual time: both worlds, within the bound of what the lab adds; memory as predicted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS

NETWORK = """
name: metro
datacenters: {a: {nodes: 2}, b: {nodes: 2}}
links: [{between: [a, b], fibre: 500 km, rate: 100 Gbit/s}]
"""
SMALL = ("parallelism.pipeline=4", "full_scale.global_batch=6", "schedules=[zb-h1]", "iterations=2", "warmup=1")


def asked(place: Path) -> dict[str, Asked]:
    (place / "metro.yaml").write_text(NETWORK)
    settings = [f"--set={setting}" for setting in SMALL]
    return {"13b": Asked(planned(place, place / "metro.yaml", "workloads/paper-llama2-13b.yaml", *settings))}


def test_full_scale_in_a_guest(measured: Mapping[str, Measured]) -> None:
    (row,) = measured["13b"].document["schedules"]
    full, memory = row["full_scale"], row["memory"]
    assert full["measured_s"] * full["lab_seconds"] == pytest.approx(row["measured_s"])
    assert abs(full["measured_s"] - full["ideal_s"]) <= full["bound_s"] < 0.002 * full["ideal_s"]
    for measured, predicted in zip(memory["measured"], memory["predicted"], strict=True):
        assert measured["activations"] == pytest.approx(predicted["activations"], rel=0.04)
        assert measured["parameters"] == predicted["parameters"]
        assert measured["buffers"] == predicted["buffers"]
    # zb-h1 holds four microbatches on every rank; each accelerator has an eighth of its rank's
    assert [one["activations"] for one in full["memory"][:3]] == [pytest.approx(4 * 34 * 4096 * 5120 * 10 / 8)] * 3
