"""Entries of comparison.json about events, failures and controllers: what a report needs in each; see contents.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.errors import BadInput


@dataclass(frozen=True)
class _Around:
    """A job around an event; None where it was not there."""

    job: str
    before_s: float | None
    during_s: float | None
    after_s: float | None
    before_predicted_s: float | None
    after_predicted_s: float | None


@dataclass(frozen=True)
class EventEntry:
    """An entry of `events`; see session/event_report.py."""

    label: str
    after: int
    flows: int
    flows_new: int
    flows_moved: int
    flows_cut: int
    choosing_s: float
    enforcing_s: float
    iterations: tuple[_Around, ...]


@dataclass(frozen=True)
class _OfJob:
    job: str
    measured_s: float
    predicted_s: float


@dataclass(frozen=True)
class LinkEventEntry:
    """An entry of `link_events`; see session/event_report.py."""

    label: str
    event: str
    iteration: int
    at_s: float
    until_s: float
    late_s: float | None
    iterations: tuple[_OfJob, ...]
    modelled: bool = True


@dataclass(frozen=True)
class _Shares:
    """What a case's time went into."""

    kept_s: float
    lost_s: float
    saving_s: float
    restarting_s: float
    total_s: float
    goodput: float
    away_s: float = 0.0
    samples: float = 0.0
    samples_per_s: float = 0.0


@dataclass(frozen=True)
class _States:
    what: str
    direction: str
    planned_bytes: float
    wire_bytes: float | None
    times: int


@dataclass(frozen=True)
class GoodputEntry:
    """An entry of `goodput`; see session/goodput_report.py."""

    label: str
    failures: int
    trained_again: int
    measured: _Shares
    predicted: _Shares
    restarts_late: int = 0
    restarts_late_s: float = 0.0
    states: tuple[_States, ...] = ()


@dataclass(frozen=True)
class _Adapted:
    """An iteration; runs of an earlier testbed have less of it."""

    iteration: int
    schedule: str
    measured_s: float
    never_predicted_s: float
    alarms: tuple[str, ...]
    changes: tuple[str, ...]
    delay_s: dict[str, float]
    rate_bps: dict[str, float | None]
    believed_s: dict[str, float]
    happens: tuple[str, ...]
    swapped_to: str | None
    stays_s: float
    expected_s: float
    oracle_predicted_s: float = 0.0
    swap_believed_s: float | None = None
    swap_took_s: float | None = None
    idle_s: float | None = None
    probing_s: float | None = None
    look_s: float = 0.0
    look_bytes: float = 0.0


@dataclass(frozen=True)
class AdaptationEntry:
    """`adaptation`; see session/adapting_lab.py."""

    controller: str
    iterations: tuple[_Adapted, ...]
    planned_s: dict[str, float]
    swap_s: float = 0.0


_TOGETHER = {
    "samples": ("samples_per_s",),
    "oracle": ("oracle_swaps", "oracle_predicted_s"),
    "swap_took_s": ("swap", "swap_believed_s"),
}
"""What an entry has beside a field of it that not all runs have."""


def check_together(comparison: Mapping[str, Any], source: str) -> None:
    """Raises BadInput where an entry has one of two fields that belong together."""
    for at, entry in _entries(comparison):
        for name, others in _TOGETHER.items():
            for other in others if entry.get(name) is not None else ():
                if entry.get(other) is None:
                    raise BadInput.of(source, f"{at}.{other}", "nothing", f"a value, beside {name}")


def _entries(comparison: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, entry in enumerate(comparison.get("goodput", ())):
        for name in ("measured", "predicted"):
            yield f"goodput.{index}.{name}", entry[name]
    for index, row in enumerate((comparison.get("adaptation") or {"iterations": ()})["iterations"]):
        yield f"adaptation.iterations.{index}", row
