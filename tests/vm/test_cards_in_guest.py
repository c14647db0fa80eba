"""Network cards under the virtual clock: messages queue on them as the model says."""

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
CARDS = """
name: cards
datacenters:
  paris: {nodes: 2, inside: {delay: 10 us, rate: 500 Mbit/s}}
  warsaw: {nodes: 2, inside: {delay: 20 us, rate: 10 Gbit/s}}
links:
  - {between: [paris, warsaw], delay: 5 ms, rate: 1 Gbit/s}
"""


def test_measured_agrees_with_the_model(tmp_path: Path, time_travel_kernel: kernel.Kernel) -> None:
    network, out = tmp_path / "cards.yaml", tmp_path / "results"
    network.write_text(CARDS)
    words = ["run", str(network), "workloads/tiny-gpt-pp4.yaml", "--clock", "virtual", "--json", "--out", str(out)]
    small = ["--set=schedules=[1f1b, crosspipe-greedy]", "--set=microbatches=6", "--iterations=3"]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *words, *small],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["schedules"]:
        assert row["trusted"], row
        assert abs(row["error"]) <= 0.001, row
    links = json.loads((out / "links.json").read_text())["links"]
    cards = [check for check in links if "card" in check["label"]]
    assert [check["label"] for check in cards] == [
        f"{site}/{n}->{site} (card)" for site in ("paris", "warsaw") for n in (0, 1)
    ]
    for check in cards:
        assert check["measured"]["one_way_s"]["median"] == pytest.approx(check["asked"]["delay_s"], abs=5e-6)
        assert check["measured"]["rate_bps"] == pytest.approx(check["asked"]["rate_bps"], rel=0.01)
    counted = pd.read_parquet(out / "links.parquet")
    on_cards = counted[counted["label"].str.contains("card")]
    assert len(on_cards) == 2 * len(cards)
    assert (on_cards["wire_bytes"] / on_cards["planned_bytes"] - 1).abs().max() <= 0.01
    assert (on_cards["dropped"] == 0).all()
