"""The actions of a schedule as arrays, one entry per action, row after row, for what goes over all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.memoization import memoized_by_identity
from testbed.pipeline.ir import KINDS, WHOLE, Action, Kind, Part, Row

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NONE = -1
"""A kind that is no block's, a number that is none, or no message."""

_LARGEST = 1 << 31


class ActionColumns(NamedTuple):
    """One entry per action."""

    row_start: Ints
    """(ranks + 1,): where every row begins, and where the last one ends."""
    rank: Ints
    stage: Ints
    kind: Ints
    microbatch: Ints
    begin: Ints
    """The part [begin, end) of `of` sub-blocks."""
    end: Ints
    of: Ints

    @property
    def fraction(self) -> Floats:
        """Share of the whole block."""
        return (self.end - self.begin) / self.of

    def is_kind(self, *kinds: Kind) -> Bools:
        """Which actions are of one of these kinds."""
        wanted = [kind in kinds for kind in KINDS]
        return np.array([*wanted, False])[self.kind]  # the last entry is that of NONE

    def consumed(self, n_stages: int, n_microbatches: int) -> Ints:
        """Per action the message that `depend.consumed` names, as (2 * stage + (0 for F, 1 for G)) * M + microbatch."""
        forward = self.is_kind(Kind.F) & (self.stage > 0)
        backward = self.is_kind(Kind.I, Kind.B) & (self.stage < n_stages - 1)
        message = np.where(forward, 2 * (self.stage - 1), 2 * (self.stage + 1) + 1) * n_microbatches + self.microbatch
        return np.where((forward | backward) & (self.begin == 0), message, NONE)

    def produced(self, n_stages: int, n_microbatches: int) -> Ints:
        """Per action the message that `depend.produced` names, numbered as in `consumed`."""
        forward = self.is_kind(Kind.F) & (self.stage < n_stages - 1)
        backward = self.is_kind(Kind.I, Kind.B) & (self.stage > 0)
        message = (2 * self.stage + backward) * n_microbatches + self.microbatch
        return np.where((forward | backward) & (self.end == self.of), message, NONE)


def columns(rows: Sequence[Row]) -> ActionColumns:
    """The actions of these rows; NONE for what is no number of a stage or microbatch, and no kind of a block.

    Those of a whole schedule are kept: it is validated, lowered and judged one after the other.
    """
    if isinstance(rows, tuple) and all(isinstance(row, tuple) for row in rows):
        return _kept_columns(rows)
    return _columns(rows)


def _columns(rows: Sequence[Row]) -> ActionColumns:
    actions = list(chain.from_iterable(rows))
    lengths = np.array([len(row) for row in rows], np.int64)
    numbers = {kind: number for number, kind in enumerate(KINDS)}
    parts = _whole_numbers(list(chain.from_iterable([action[3] for action in actions]))).reshape(-1, 3)
    return ActionColumns(
        np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
        np.arange(len(rows)).repeat(lengths),
        _whole_numbers([action[0] for action in actions]),
        np.array([numbers.get(action[1], NONE) for action in actions], np.int64),
        _whole_numbers([action[2] for action in actions]),
        *parts.T,
    )


def rows_of(table: ActionColumns) -> tuple[Row, ...]:
    """The rows that have these columns, of blocks alone."""
    names = [KINDS[kind] for kind in table.kind.tolist()]
    made = map(Part._make, zip(table.begin.tolist(), table.end.tolist(), table.of.tolist(), strict=True))
    parts = [WHOLE if part == WHOLE else part for part in made]
    actions = tuple(map(Action, table.stage.tolist(), names, table.microbatch.tolist(), parts))
    return tuple(actions[begin:end] for begin, end in pairwise(table.row_start.tolist()))


@memoized_by_identity(2)
def _kept_columns(rows: tuple[Row, ...]) -> ActionColumns:
    made = _columns(rows)
    for column in made:
        column.flags.writeable = False
    return made


def _whole_numbers(values: Sequence[object]) -> Ints:
    """What is no whole number of a usual size becomes NONE: somebody's own generator can hold anything."""
    found = np.array(values)
    if found.dtype == np.int64 or not values:
        return found.astype(np.int64)
    return np.array([value if isinstance(value, int) and abs(value) < _LARGEST else NONE for value in values], np.int64)
