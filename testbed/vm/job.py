"""What host and guest say to each other, as files in one directory that both see. Imports only the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

JOB_DIRECTORY = "/run/testbed/job"
"""In the guest: where job, reports and output lie."""

GUEST_OUT = "/run/testbed/out"
"""In the guest: results; command n writes to GUEST_OUT/n."""

JOB_FILE = "job.json"
REPORT_FILE = "reports.jsonl"
GUEST_LOG = "guest.log"
"""What process 1 itself has to say: only when something is wrong."""

RESULT_FILE = "result.json"
INTERRUPT_FILE = "interrupt"
"""The host makes it when the user wants the guest to stop."""


def standard_output(command: int) -> str:
    """The file that a command's standard output goes to."""
    return f"{command}.stdout"


def standard_error(command: int) -> str:
    """The file that a command's standard error goes to."""
    return f"{command}.stderr"


@dataclass(frozen=True)
class GuestJob:
    """What a guest has to do in one boot."""

    commands: tuple[tuple[str, ...], ...]
    """Arguments of `testbed`, one tuple per command; paths as the guest sees them."""
    environment: dict[str, str]
    modules: tuple[str, ...]
    """Kernel modules to load, in order."""
    training: bool
    """Whether the commands train: torch is imported before the first."""
    virtual: bool
    """Whether time is virtual."""
    phase_s: float
    """How long to sleep before the first command: where the run lies between the ticks of the guest's timers."""

    def as_json(self) -> str:
        """One JSON document."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GuestJob:
        """What as_json wrote."""
        document = json.loads(text)
        commands = tuple(tuple(command) for command in document["commands"])
        return cls(**document | {"commands": commands, "modules": tuple(document["modules"])})


@dataclass(frozen=True)
class Report:
    """Where the guest was at an instant of its own clock."""

    event: str
    time_s: float
    """Seconds of the guest's monotonic clock."""
    command: int | None
    processes: tuple[str, ...]
    """What every rank was doing."""

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Report:
        """What as_json wrote."""
        document = json.loads(line)
        return cls(document["event"], document["time_s"], document["command"], tuple(document["processes"]))
