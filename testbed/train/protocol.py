"""What the launcher, the fork server and the workers say to each other over their pipes. Imports no torch."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from testbed.lab.confinement import Confinement
from testbed.plan.state_exchange import StateMessage
from testbed.spec.workload import Workload
from testbed.train.assignment import IterationRecord, ReferenceOutcome, TimedSchedule, TrainingTask

END_WORKERS = signal.SIGUSR1
"""Has a fork server that has workers kill those that are left."""
SHOW_THREADS = signal.SIGUSR2
"""Has a worker write into its log where its threads are."""


@dataclass(frozen=True)
class WorkerPlace:
    """Where a rank's worker lives."""

    container_pid: int | None
    """A process whose namespaces the worker joins; None stays where it is (loopback, for tests)."""
    interface: str
    """The network interface gloo listens on."""
    groups: tuple[str, ...] = ()
    """Files that it writes 0 to, to be bound by the limits of its node."""


@dataclass(frozen=True)
class WorldSpec:
    """The process group that all workers join."""

    places: tuple[WorkerPlace, ...]
    """One per rank."""
    store: str
    """Where they find each other: file:// and a file that does not exist yet, on a file system all of them share, or
    tcp:// and the address, port and prefix of a store that is there (train/peer_store.py)."""
    timeout_s: float
    """Deadline of any wait for a peer."""
    warmup_bytes: int
    """Sent in both directions over every connection before anything is timed."""
    neighbours: tuple[tuple[int, int], ...]
    """Pairs of ranks that exchange messages."""
    logs: str
    """Directory for rank<r>.log."""
    first_rank: int = 0
    """What the first of these ranks is called: the ranks of jobs beside each other count on."""
    job: str = ""
    """Whose ranks they are; empty where there is one job only."""
    real_time: bool = False
    """Whether workers run under SCHED_RR."""
    seldom_looks: bool = False
    """Whether gloo's idle threads wake less often (train/idle_threads.py): only where time costs nothing, and nobody
    times how workers connect."""
    witness: bool = True
    """Whether workers tell what the machine did to them."""
    streams: int = 1
    """Connections between any two of the ranks."""
    cores: tuple[int, ...] = ()
    """Per rank, the processor core that it and its threads stay on; empty: any."""
    confinement: Confinement | None = None
    """Of workers in containers: they are handed their logs, which they could not open."""
    among: tuple[int, ...] = ()
    """Which of the job's ranks these are, counted from 0, where not all have a part; empty: all."""

    def called(self, rank: int) -> int:
        """The number that people know a rank by."""
        return self.first_rank + (self.among[rank] if self.among else rank)

    def log_file(self, rank: int) -> Path:
        """Where a worker's words go."""
        return Path(self.logs) / f"rank{self.called(rank)}.log"


# launcher -> fork server


@dataclass(frozen=True)
class TrainReference:
    """Train the same in one process, once torch is imported and before workers are forked; answered by Trained."""

    workload: Workload
    iterations: int
    """Warm-up included."""
    deadline_s: float
    lasts: tuple[int, ...] = ()
    """The iterations that are the last one compared of a case."""
    resized: bool = False
    """Whether the batch may be cut into other microbatches on the way."""
    replicas: tuple[int, ...] = ()
    """Per iteration, how many there are, where that is not always the same."""
    confinement: Confinement | None = None
    """Of the process, which needs no directory to write to."""


@dataclass(frozen=True)
class StartWorkers:
    """Fork one worker per place."""

    world: WorldSpec


# fork server -> launcher


@dataclass(frozen=True)
class Imported:
    """torch is imported; workers can be forked."""

    seconds: float


@dataclass(frozen=True)
class ReferenceTrained:
    """The reference is trained, or could not be."""

    reference: ReferenceOutcome


@dataclass(frozen=True)
class Exited:
    """A worker process ended."""

    rank: int
    status: int
    """Exit status; negative: the signal that killed it."""


@dataclass(frozen=True)
class Halted:
    """A worker process was stopped by a signal, as by SIGSTOP, or goes on."""

    rank: int
    by: int
    """The signal; 0: it goes on."""


# launcher -> worker


@dataclass(frozen=True)
class FailAt:
    """Workers end without a word, at an instant of the monotonic clock."""

    ranks: frozenset[int]
    at_s: float


@dataclass(frozen=True)
class Prepare:
    """Begin a training: draw its weights, and post its first receives."""

    task: TrainingTask
    saved: str | int | None = None
    """The directory of a SaveState, or the version of a state in memory; the training goes on from there."""


@dataclass(frozen=True)
class SaveState:
    """Write what is trained so far into a directory that is there; answered by Ready. Told between two iterations."""

    directory: str
    fails: FailAt | None = None


@dataclass(frozen=True)
class Remember:
    """Have this rank's share of memory for states (train/held_states.py), whose descriptor comes next; answered by
    Ready."""

    sizes: tuple[tuple[int, int], ...]
    """Per rank, bytes of its own state and of the one that it keeps."""
    element_bytes: int
    shards: bool = False
    """Whether these are shards of an optimizer that replicas share, not all that a rank has."""


@dataclass(frozen=True)
class PostStates:
    """Post the receives of the states among these that are for this rank; answered by Ready. Told while nothing is
    trained."""

    messages: tuple[StateMessage, ...]
    version: int


@dataclass(frozen=True)
class ExchangeStates:
    """Send the states among these that this rank sends; answered by StatesHeld. Told behind PostStates."""

    messages: tuple[StateMessage, ...]
    version: int
    start_s: float
    """Instant of the monotonic clock at which the first rank begins to send."""
    stagger_s: float
    """So much later than the one before it each other rank does."""
    packs: bool
    """Whether each rank first writes its own state, as it is now, to where that is sent from."""
    fails: FailAt | None = None


@dataclass(frozen=True)
class SwapSchedule:
    """Go on with another schedule, with the same weights, from the next iteration on; answered by Ready. Where its
    stages are on other ranks, these are sent to them before that.

    Told between two iterations, before PostReceives.
    """

    timed: TimedSchedule


@dataclass(frozen=True)
class PostReceives:
    """Post the receives of an iteration; answered by Ready. Told when every rank has ended the one before the last."""

    iteration: int


@dataclass(frozen=True)
class Go:
    """Run an iteration, beginning at an instant of the monotonic clock."""

    iteration: int
    start_s: float
    fails: FailAt | None = None


@dataclass(frozen=True)
class CountResent:
    """Say what TCP had to send again so far; answered by Resent. Told between two iterations."""


@dataclass(frozen=True)
class Leave:
    """Leave the process group, which all ranks are told; answered by Ready. Next is Join, or Stop."""


@dataclass(frozen=True)
class Join:
    """Join another process group, in the same container; answered by Ready when its connections are up and warm.

    To workers that are confined, the descriptor of their new log comes next."""

    world: WorldSpec


@dataclass(frozen=True)
class Stop:
    """Leave."""


# worker -> launcher


@dataclass(frozen=True)
class Ready:
    """The process group is up and its connections are warm; or what was told is done."""

    rank: int


@dataclass(frozen=True)
class StatesHeld:
    """All states that are for this rank have come."""

    rank: int
    came_s: float
    """When, on the monotonic clock."""


@dataclass(frozen=True)
class Done:
    """An iteration is over."""

    record: IterationRecord


@dataclass(frozen=True)
class Resent:
    """What TCP has sent again on all of the worker's connections."""

    segments: int


@dataclass(frozen=True)
class Failed:
    """The worker cannot go on."""

    rank: int
    reason: str
