"""Covering arrays: few rows of options in which each pair of values stands together, drawn by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import combinations
from random import Random
from typing import Any

TRIES = 8

Row = Mapping[str, Any]
"""A value of every option."""
Options = Mapping[str, tuple[Any, ...]]
"""The values of each."""
Possible = Callable[[Sequence[Any]], bool]
"""Whether some options and their values may stand together."""
Pair = tuple[str, Any, str, Any]
"""Two options, the one that is first in the alphabet ahead, each with a value."""


def pairs_in(row: Row) -> set[Pair]:
    """All pairs of values that a row has, however its options are ordered."""
    return {(*one, *other) for one, other in combinations(sorted(row.items()), 2)}


def pairs_of(options: Options) -> set[Pair]:
    """All pairs of values that there are."""
    return {(a, x, b, y) for a, b in combinations(sorted(options), 2) for x in options[a] for y in options[b]}


def covering_array(options: Options, possible: Possible, wanted: Set[Pair], draw: Random) -> list[Row]:
    """Row after row, the one of several that has most of the wanted pairs that none had before.

    Each begins with such a pair. Those that no row was found for are left out: they cannot stand together in one.
    """
    lacking, rows = set(wanted), []
    while lacking:
        first = draw.choice(sorted(lacking, key=repr))
        tried = [row for _ in range(TRIES) if (row := _with_pair(options, possible, first, lacking, draw)) is not None]
        lacking.discard(first)
        if tried:
            best = max(tried, key=lambda row: len(pairs_in(row) & lacking))
            lacking -= pairs_in(best)
            rows.append(best)
    return rows


def _with_pair(options: Options, possible: Possible, pair: Pair, lacking: Set[Pair], draw: Random) -> Row | None:
    """A row with this pair, its other options drawn one by one: whichever value has most of what is lacking with those
    before it. None where none is possible any more."""
    row = {pair[0]: pair[1], pair[2]: pair[3]}
    for name in draw.sample(sorted(options), len(options)):
        if name in row:
            continue
        values = draw.sample(options[name], len(options[name]))
        left = [value for value in values if possible([*row.items(), (name, value)])]
        if not left:
            return None
        row[name] = max(left, key=lambda value: len(_pairs_with(row, name, value) & lacking))
    return row


def _pairs_with(row: Row, name: str, value: Any) -> set[Pair]:
    """Those of a value of an option with each one of a row."""
    return {
        (name, value, other, there) if name < other else (other, there, name, value) for other, there in row.items()
    }
