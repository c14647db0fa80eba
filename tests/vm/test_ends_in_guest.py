"""Ends of a job whose links change, on the virtual clock: an outage longer than any usual deadline is gone through, a
link that stays down is an error with the names of all that is in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from one_boot import MARKS, ROOT, Asked, Measured, planned

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from events_on_the_wire import LIMITS, iterations_of

pytestmark = MARKS

TWO, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
WORDS = ("--iterations", "4", "--set", "warmup=1", "--schedule", "1f1b")
LONGER = "ends-longer"
OUTAGE_S = 45


def asked(place: Path) -> dict[str, Asked]:
    event = f"datacenter warsaw down for {OUTAGE_S} s at iteration 1 + 100 ms"
    return {LONGER: Asked(planned(place, TWO, PP4, *WORDS, "--event", event), "relay")}


def test_an_outage_longer_than_a_usual_deadline_is_gone_through(measured: Mapping[str, Measured]) -> None:
    _, document, out, _ = measured[LONGER]
    (row,) = document["schedules"]
    assert row["trusted"], row["reasons"]
    found = iterations_of(LONGER, out, "1f1b")
    assert max(one.measured_s for one in found) > OUTAGE_S > 10 * row["predicted_s"] + 10
    assert max(one.missed for one in found) <= LIMITS["virtual"], found


def test_a_link_that_stays_down_ends_the_run_with_all_names(tmp_path: Path) -> None:
    event = "link paris--warsaw paris -> warsaw down at iteration 2 + 100 ms"
    words = (*WORDS, "--event", event, "--clock", "virtual", "--no-picture", "--out", str(tmp_path / "out"))
    command = [sys.executable, "-m", "testbed", "run", str(TWO), str(PP4), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 4, done.stderr
    assert "warning: iteration 2 never ends, with link" in done.stderr
    said = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert said.startswith("error: paris->warsaw sends nothing since 100 ms into measured iteration 2 (link paris")
    assert "rank 0, 1, 2, 3 did not finish iteration 3 of 1f1b within 18." in said
    assert (tmp_path / "out/iterations.parquet").is_file(), "what was measured before is kept"
