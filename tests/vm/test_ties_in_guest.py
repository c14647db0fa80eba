"""A prediction that hangs on who comes first, under the virtual clock: a range from prediction to verdict."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from in_process import run_testbed
from one_boot import MARKS, Asked, Measured, planned

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from drawn_then import documents
from harness.plans import write

pytestmark = MARKS

NUMBER, SEED, SCHEDULE = 77, 1, "interleaved-1f1b"
"""A plan of the benchmark with tensor ranks: who comes first decides over 1 %."""


def asked(place: Path) -> dict[str, Asked]:
    files = write(place, "ties", *documents(NUMBER, SEED))
    return {"ties": Asked(planned(place, *files, f"--schedule={SCHEDULE}"), quiet=False)}


def test_a_run_is_judged_by_the_range_and_says_so(measured: Mapping[str, Measured]) -> None:
    _, document, out, said = measured["ties"]
    assert "who comes first" in said.partition("training")[0]  # before it is measured
    shown = run_testbed("report", out)
    assert shown.returncode == 0, shown.stderr
    assert " ms by who comes first; trusted" in " ".join(shown.stdout.split())  # lines are of 80 columns
    (row,) = document["schedules"]
    low_s, high_s = row["predicted_low_s"], row["predicted_high_s"]
    assert high_s > low_s * 1.01
    assert low_s * 0.9995 <= row["measured_s"] <= high_s * 1.0005
    assert row["trusted"], row["reasons"]
