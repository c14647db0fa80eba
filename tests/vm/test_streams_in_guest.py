"""Several streams for each pair of ranks on the virtual clock: the quick form of benchmarks/streams.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from one_boot import MARKS, Asked, Measured

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import streams

from testbed.plan.plan import Clock
from testbed.planning.resolve import with_clock

pytestmark = MARKS

NUMBERS = (4, 11, 19, 21)
"""Of the benchmark's plans: two jobs with 16 streams and others, late receives; replicas behind cards with 2, late;
cards with 16, early; tensor ranks with 2, late."""


def asked(place: Path) -> dict[str, Asked]:
    trainings = {number: streams.training(number, place, f"streams-{number}", 1, 1) for number in NUMBERS}
    return {f"streams-{number}": Asked(with_clock(one.plan, Clock("virtual"))) for number, one in trainings.items()}


@pytest.mark.parametrize("number", NUMBERS)
def test_several_streams_take_what_the_model_says(measured: Mapping[str, Measured], number: int) -> None:
    for row in measured[f"streams-{number}"].document["schedules"]:
        low_s = row["predicted_low_s"] or row["predicted_s"]
        high_s = row["predicted_high_s"] or row["predicted_s"]
        assert low_s * (1 - streams.TARGET) <= row["measured_s"] <= high_s * (1 + streams.TARGET), row
        assert row["trusted"], row["reasons"]
