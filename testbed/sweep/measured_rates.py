"""Some of a sweep's rates measured in virtual time: every schedule, all in one boot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.progress import Reporter
from testbed.sweep.knee import Swept
from testbed.sweep.measured_plans import measure_plans

MeasuredRates = Mapping[float, Mapping[str, Mapping[str, Any]]]
"""Rate -> label -> the entry of comparison.json."""


def spread(count: int, wanted: int) -> list[int]:
    """Places of so many of the rates, evenly, both ends among them."""
    if wanted == 1:
        return [count // 2]
    return sorted({round(number * (count - 1) / (wanted - 1)) for number in range(wanted)})


def measure(
    swept: Sequence[Swept], places: Sequence[int], out: Path | None, *, limit_s: float, reporter: Reporter
) -> MeasuredRates:
    """The schedules at these places of the sweep; kept where `out` is a directory.

    Raises MachineLacks, BadInput, or RunFailed where one rate could not be measured.
    """
    plans = {f"rate-{place:03d}": swept[place].plan for place in places}
    measured = measure_plans(plans, out, what="rate", limit_s=limit_s, reporter=reporter)
    return {
        swept[place].rate_bps: {row["label"]: row for row in rows} for place, rows in zip(places, measured, strict=True)
    }
