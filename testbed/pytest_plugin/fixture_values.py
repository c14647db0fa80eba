"""What fixtures return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Prediction:
    """What the model says of one schedule; times in seconds."""

    schedule: str
    """The family, or the file it came from."""
    label: str
    predicted_s: float
    """One iteration."""
    low_s: float
    """The least and the most that it may be, by who comes first at a link; mostly both are `predicted_s`."""
    high_s: float
    bubble: float
    """Idle share of all ranks' time."""
    peak_in_flight: float
    """Most microbatches held at once on any rank."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Out of what `testbed predict --json` prints."""
        predicted_s = row["predicted_s"]
        low_s, high_s = row["predicted_low_s"], row["predicted_high_s"]
        return cls(
            row["schedule"],
            row["label"],
            predicted_s,
            predicted_s if low_s is None else low_s,
            predicted_s if high_s is None else high_s,
            row["bubble_predicted"],
            row["peak_in_flight_predicted"],
        )


@dataclass(frozen=True)
class TrainedSchedule:
    """One schedule of a training; times in seconds."""

    schedule: str
    """The family, or the file it came from."""
    label: str
    measured_s: float
    """Median iteration."""
    predicted_s: float
    error: float
    """(measured - predicted) / predicted"""
    trusted: bool
    reasons: tuple[str, ...]
    """Why it cannot be trusted."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Out of comparison.json."""
        named = {name: row[name] for name in ("schedule", "label", "measured_s", "predicted_s", "error", "trusted")}
        return cls(**named, reasons=tuple(row["reasons"]))


@dataclass(frozen=True)
class Training:
    """A run that finished; it is read by label: `training["1f1b"].measured_s`."""

    directory: Path
    """Its results: docs/data-format.md says what every file holds."""
    schedules: Mapping[str, TrainedSchedule]
    comparison: Mapping[str, Any]
    """comparison.json."""

    def __getitem__(self, label: str) -> TrainedSchedule:
        """Raises KeyError for a label that was not trained."""
        return self.schedules[label]

    @property
    def trusted(self) -> bool:
        """Whether every schedule can be."""
        return all(one.trusted for one in self.schedules.values())

    @property
    def fastest(self) -> str:
        """The label of the schedule with the least measured time."""
        return min(self.schedules, key=lambda label: self.schedules[label].measured_s)
