"""What rank 0 and the keepers of all ranks say to each other; what workers are told is in train/protocol.py."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.lab.machine_witness import MachineCounts
from testbed.train.protocol import Exited

# rank 0 -> keeper


@dataclass(frozen=True)
class TellTime:
    """Answered by TimeTold, at once."""


@dataclass(frozen=True)
class TellMachine:
    """Say what the machine has counted so far; answered by MachineCounts."""


@dataclass(frozen=True)
class ServePath:
    """Let one other rank measure the path to this one; answered by PathOpened, and when it is over by PathServed."""


@dataclass(frozen=True)
class MeasurePath:
    """Measure the path to whoever serves one; answered by PathMeasured."""

    address: str
    port: int


@dataclass(frozen=True)
class Release:
    """All is over: leave."""

    reason: str = ""
    """Why the run failed; empty where it did not."""


# keeper -> rank 0


@dataclass(frozen=True)
class TimeTold:
    """By the keeper's monotonic clock, when it was asked and when it answers."""

    asked_s: float
    answered_s: float


@dataclass(frozen=True)
class MachineTold:
    """What the machine has counted."""

    counts: MachineCounts


@dataclass(frozen=True)
class PathOpened:
    """Where the other rank is to connect."""

    address: str
    port: int


@dataclass(frozen=True)
class PathServed:
    """What came in, for how many seconds in its second half; beyond that, how many bytes."""

    received_bytes: int
    half_bytes: int
    half_s: float


@dataclass(frozen=True)
class PathMeasured:
    """Of every word there and back, seconds."""

    round_trips_s: tuple[float, ...]
    sent_bytes: int


@dataclass(frozen=True)
class Trouble:
    """What was asked for could not be done."""

    reason: str


@dataclass(frozen=True)
class RemoteEnd(Exited):
    """A worker ended on another machine."""

    log: str
    """The end of what it wrote."""
