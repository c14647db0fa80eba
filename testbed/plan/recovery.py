"""Workers that fail while a job trains, and what the job does so that not all of its work is lost: plan data."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ConfigDict, with_config

MOST_FAILURES = 1000
"""In one plan."""
LATEST_FAILURE_S = 1e6
MOST_SLOT_S = 3600.0
"""For saving, and for a restart."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Failure:
    """A worker ends without a word, as when its machine does."""

    rank: int
    at_s: float
    """Of the job's own time: training, saving and restarting count, and what the testbed does in between does not."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Checkpoints:
    """What a job keeps of its state, and how it goes on from there.

    What saving and restarting take are slots, as those of actions are: the real work is done, and the rest of the slot
    is waited for. So a laptop's memory can stand for a file system far away.
    """

    every: int
    """Iterations between one and the next."""
    save_s: float
    """For so long the job stands still while every rank saves its state."""
    restart_s: float
    """From a failure until the iteration behind the last checkpoint begins: to notice, to start workers, to connect, to
    load."""


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Recovery:
    """Of the only job of a plan."""

    checkpoints: Checkpoints
    failures: tuple[Failure, ...]
    """In order of time; those that come when the training is over do not count."""


def drawn_failures(mtbf_s: float, until_s: float, ranks: int, seed: int) -> Iterator[Failure]:
    """Independent failures of a job until some moment, `mtbf_s` seconds apart on average (exponential), each of any
    rank."""
    draw, at_s = random.Random(seed), 0.0
    while (at_s := at_s + draw.expovariate(1 / mtbf_s)) < until_s:
        yield Failure(draw.randrange(ranks), at_s)
