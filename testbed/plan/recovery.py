"""Workers that fail while a job trains, and what the job does so that not all of its work is lost: plan data."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, with_config

MOST_FAILURES = 1000
"""In one plan."""
LATEST_FAILURE_S = 1e6
MOST_SLOT_S = 3600.0
"""For saving, and for a restart."""
MOST_NOTICE_S = 30.0
"""Until somebody who is cut off is noticed."""
MOST_STATE_BYTES = 2**30
"""Of a rank."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Failure:
    """Workers end without a word, at one instant, and what their nodes held in memory is gone; or the links of a
    datacenter carry nothing for some time, and nothing is lost but what is trained meanwhile."""

    rank: int | None
    """None where it is not one rank by itself."""
    at_s: float
    """Of the job's own time: training, saving and restarting count, and what the testbed does in between does not."""
    place: str = ""
    """A node, or a datacenter with all of its nodes; empty where it is a rank."""
    cut_s: float | None = None
    """For so long the datacenter is cut off; None where it is lost."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class MemoryCheckpoints:
    """Every rank's state is kept in its own memory, and goes over the links into that of a neighbour."""

    disk_every: int | None = None
    """Iterations between two checkpoints that are on disk as well, as many as some of memory; None: there is none."""
    disk_save_s: float = 0.0
    """For so much longer the job stands still for one of these."""
    state_bytes: int | None = None
    """Of what a rank sends, padding included; None: what its state really has."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Checkpoints:
    """What a job keeps of its state, and how it goes on from there.

    What saving and restarting take are slots, as those of actions are: the real work is done, and the rest of the slot
    is waited for. So a laptop's memory can stand for a file system far away. What goes over links takes what these do.
    """

    every: int
    """Iterations between one and the next."""
    save_s: float
    """For so long the job stands still while every rank saves its state; before it is sent, where it is."""
    restart_s: float
    """From a failure until the iteration behind the last checkpoint begins: to notice, to start workers, to connect, to
    load; until lost states are sent again, where they are."""
    memory: MemoryCheckpoints | None = None
    """None where checkpoints are on disk alone."""
    notice_s: float = 1.0
    """So long after a datacenter is cut off all workers give up waiting, and end."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Elastic:
    """A job goes on with the replicas that are left: every rank keeps its state of the last boundary between iterations
    in its own memory, and the batch is that of the replicas that take part. Of an optimizer that they share each keeps
    its own shard, and a copy of that of the replica before it."""

    restart_s: float
    """From a failure until the iteration that it broke off begins again, and from the boundary at which lost replicas
    are back until they are sent states: to notice, to start workers, to connect, to load. What shards take on the links
    comes behind it."""
    repair_s: float | None = None
    """So long after its failure a replica can be back; None: never."""
    every: int = 1
    """Where replicas share an optimizer (ZeRO-1): iterations from one boundary at which each rank's shard is copied to
    the next replica until the next one. The job goes on from these boundaries; where nothing is shared, from all."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Recovery:
    """Of the only job of a plan: from checkpoints with new workers in the place of those that failed, or elastic."""

    checkpoints: Checkpoints | None
    failures: tuple[Failure, ...]
    """In order of time; those that come when the training is over do not count."""
    elastic: Elastic | None = None
    """None where there are checkpoints, and never beside them."""

    @property
    def restart_s(self) -> float:
        """What a restart takes."""
        chosen = self.checkpoints or self.elastic
        return 0.0 if chosen is None else chosen.restart_s


Of = Literal["ranks", "nodes", "datacenters", "cuts"]
"""What fails by chance; cuts: of datacenters, which are cut off for some time."""


def drawn_failures(
    mtbf_s: float, until_s: float, ranks: int, seed: int, places: Sequence[str] = (), cut_s: float | None = None
) -> Iterator[Failure]:
    """Independent failures of a job until some moment, `mtbf_s` seconds apart on average (exponential), each of any
    rank; of any of these places where there are some, which are cut off for `cut_s` if that is given."""
    draw, at_s = random.Random(seed), 0.0
    while (at_s := at_s + draw.expovariate(1 / mtbf_s)) < until_s:
        if places:
            yield Failure(None, at_s, places[draw.randrange(len(places))], cut_s)
        else:
            yield Failure(draw.randrange(ranks), at_s)


def cuts_off(recovery: Recovery | None) -> bool:
    """Whether a datacenter is cut off."""
    return recovery is not None and any(failure.cut_s is not None for failure in recovery.failures)
