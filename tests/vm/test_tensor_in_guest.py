"""Replicas, stages and tensor ranks under the virtual clock: as the model says, with every byte accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from one_boot import MARKS, Asked, Measured, planned

pytestmark = MARKS

NETWORK, WORKLOAD = "topologies/two-dc-cards.yaml", "workloads/tiny-gpt-pp4.yaml"


def asked(place: Path) -> dict[str, Asked]:
    cube = ("parallelism={pipeline: 2, data: 2, tensor: 2}", "schedules=[zb-h1]", "microbatches=4", "iterations=2")
    return {"cube": Asked(planned(place, NETWORK, WORKLOAD, *(f"--set={one}" for one in cube)))}


def test_measured_agrees_with_the_model(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured["cube"]
    (row,) = document["schedules"]
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
