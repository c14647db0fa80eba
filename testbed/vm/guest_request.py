"""What host and guest say to each other, as files in one directory that both see. Imports only the standard library."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

JOB_DIRECTORY = "/run/testbed/job"
"""In the guest: where job, reports and output lie."""

GUEST_OUT = "/run/testbed/out"
"""In the guest: results; task n writes to GUEST_OUT/n."""

JOB_FILE = "job.json"
REPORT_FILE = "reports.jsonl"
GUEST_LOG = "guest.log"
"""What process 1 itself has to say: only when something is wrong."""

RESULT_FILE = "result.json"
FINISHED = "finished"
"""The event of a guest's last report: whatever it had to write is written."""

INTERRUPT_FILE = "interrupt"
"""The host makes it when the user wants the guest to stop."""


def result_file(task: int) -> str:
    """The file that a task's document goes to."""
    return f"{task}.json"


def standard_error(task: int) -> str:
    """The file that a task's standard error goes to."""
    return f"{task}.stderr"


@dataclass(frozen=True)
class GuestTask:
    """One plan, and what to do with it: `train` its cases, `calibrate` its links, or measure the `engine`."""

    what: str
    plan: str
    """The file, as the guest sees it."""
    out: str | None
    """Results directory, as the guest sees it."""
    shaper: str
    quiet: bool = False
    beside_mininet: bool = False
    strict: bool = False
    """Whether links that are not as asked end a training."""
    sizes: tuple[int, ...] = ()
    """Of messages, in bytes, to measure the engine with."""
    shown: tuple[str, ...] = ()
    """Directories that a job's code may read."""


@dataclass(frozen=True)
class GuestJob:
    """What a guest has to do in one boot."""

    tasks: tuple[GuestTask, ...]
    environment: dict[str, str]
    modules: tuple[str, ...]
    """Kernel modules to load, in order."""
    training: bool
    """Whether the tasks train: torch is imported before the first."""
    virtual: bool
    """Whether time is virtual."""
    results: tuple[str | None, ...]
    """Per task, its results directory on this machine, which the guest itself has to mount; () where that is done."""
    phase_s: float
    """Where every task begins between the ticks of the guest's timers."""
    copied: bool = False
    """Whether the guest has no tasks of its own, and waits to be copied, each time with a job of the copy's."""

    def as_json(self) -> str:
        """One JSON document."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GuestJob:
        """What as_json wrote."""
        document = json.loads(text)
        lists = "sizes", "shown"
        tasks = tuple(GuestTask(**task | {name: tuple(task[name]) for name in lists}) for task in document["tasks"])
        tuples = {name: tuple(document[name]) for name in ("modules", "results")}
        return cls(**document | {"tasks": tasks} | tuples)


@dataclass(frozen=True)
class GuestProgress:
    """Where the guest was at an instant of its own clock."""

    event: str
    time_s: float
    """Seconds of the guest's monotonic clock."""
    task: int | None
    processes: tuple[str, ...]
    """What every rank was doing."""

    def as_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> GuestProgress:
        """What as_json wrote."""
        document = json.loads(line)
        return cls(document["event"], document["time_s"], document["task"], tuple(document["processes"]))
