"""The schedule IR: what every rank does, in order. Nothing about time, nothing about transport.

The notation is torch.distributed.pipelining's (`<stage><kind><microbatch>`, e.g. `3F5`), extended by parts:
`3W5[0:2/4]` is the first two of the four equal sub-blocks of `3W5` (CrossPipe's sub-blocks, section 4.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What an action does. Letters are torch's; CrossPipe writes D for I."""

    __hash__ = str.__hash__  # names are values, so this is the same but ten times faster than an Enum's

    F = "F"
    """forward"""
    B = "B"
    """full backward: input and weight gradient"""
    I = "I"  # noqa: E741
    """input gradient"""
    W = "W"
    """weight gradient"""
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    WAIT_SEND_F = "WAIT_SEND_F"
    WAIT_SEND_B = "WAIT_SEND_B"
    WAIT_REDUCE_GRAD = "WAIT_REDUCE_GRAD"


KINDS = (Kind.F, Kind.B, Kind.I, Kind.W)
"""Kinds of blocks by their number in arrays and tables."""

COMPUTE = frozenset(KINDS)
WHOLE_STAGE = frozenset({Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD, Kind.WAIT_REDUCE_GRAD})
"""Kinds that concern a stage as a whole and carry no microbatch."""


class Part(NamedTuple):
    """Sub-blocks [begin, end) of `of` equal ones."""

    begin: int
    end: int
    of: int

    @property
    def fraction(self) -> float:
        """Share of the whole block."""
        return (self.end - self.begin) / self.of

    @property
    def is_first(self) -> bool:
        """Whether the block begins here."""
        return self.begin == 0

    @property
    def is_last(self) -> bool:
        """Whether the block ends here."""
        return self.end == self.of


WHOLE = Part(0, 1, 1)


class Action(NamedTuple):
    """One thing a stage does; `stage` is global (0 .. number of stages - 1)."""

    stage: int
    kind: Kind
    microbatch: int | None = None
    part: Part = WHOLE

    def __str__(self) -> str:
        microbatch = "" if self.microbatch is None else str(self.microbatch)
        part = "" if self.part == WHOLE else f"[{self.part.begin}:{self.part.end}/{self.part.of}]"
        return f"{self.stage}{self.kind}{microbatch}{part}"

    def __repr__(self) -> str:
        return str(self)


_NUMBER = r"(?:0|[1-9][0-9]*)"
_ACTION = re.compile(
    rf"(?P<stage>{_NUMBER})(?P<kind>{'|'.join(Kind)})"
    rf"(?P<microbatch>{_NUMBER})?(?:\[(?P<begin>{_NUMBER}):(?P<end>{_NUMBER})/(?P<of>{_NUMBER})\])?",
    re.ASCII,
)


def parse_action(text: str) -> Action:
    """The action that `text` writes; the whole text must match.

    Raises ValueError for anything else: garbage behind an action, a missing or superfluous microbatch, an empty part.
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"not an action: {text!r}")
    kind = Kind(match["kind"])
    if (match["microbatch"] is None) != (kind in WHOLE_STAGE):
        wants = "no microbatch" if kind in WHOLE_STAGE else "a microbatch"
        raise ValueError(f"{kind} takes {wants}: {text!r}")
    part = WHOLE
    if match["of"] is not None:
        part = Part(int(match["begin"]), int(match["end"]), int(match["of"]))
        if kind not in COMPUTE or not part.begin < part.end <= part.of or part == WHOLE:
            raise ValueError(f"not a part of a block: {text!r}")
    microbatch = None if match["microbatch"] is None else int(match["microbatch"])
    return Action(int(match["stage"]), kind, microbatch, part)


Row = tuple[Action, ...]


@dataclass(frozen=True)
class Schedule:
    """For every rank, its actions in order."""

    name: str
    rows: tuple[Row, ...]
    """One row per rank."""
    stage_to_rank: tuple[int, ...]
    """The rank that holds each stage."""
    n_microbatches: int

    @property
    def n_ranks(self) -> int:
        """Pipeline degree P."""
        return len(self.rows)

    @property
    def n_stages(self) -> int:
        """Stages over all ranks: P times the chunks per rank."""
        return len(self.stage_to_rank)

    def actions(self) -> Iterator[tuple[int, Action]]:
        """Every (rank, action), rank by rank in program order."""
        for rank, row in enumerate(self.rows):
            for action in row:
                yield rank, action

    def renamed(self, name: str) -> Schedule:
        """The same schedule under another name."""
        return replace(self, name=name)
