"""The array of option pairs: every value makes another plan, and what may not stand together is refused in a line."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import option_pairs
from parts.covering_array import pairs_in, pairs_of
from parts.drawn_options import Drawn
from parts.plan_options import EVERY, NEEDS, SIMPLE

NEEDED = {"exchange": {"data": 2}}
"""What all values of an option need, to be seen in files."""


@pytest.mark.parametrize("array", [*option_pairs.FIRST, *option_pairs.LATER_ON], ids=lambda array: array.name)
def test_an_array_has_every_pair_that_may_stand_together(array: option_pairs.Array) -> None:
    met = set().union(*map(pairs_in, array.rows(3, 0)))
    # a Clos alone has ports, and links that no event, loss or jitter, traffic and unequal cards can be of
    assert all("enforce" in pair and "ports" in pair for pair in array.wanted() - met)
    assert met <= pairs_of(array.options)


@pytest.mark.parametrize("option", [name for name in EVERY if name != "shaper"])
def test_every_value_of_an_option_makes_other_files_or_another_command(option: str) -> None:
    made: dict[str, object] = {}
    for value in EVERY[option]:
        needed = {**NEEDED.get(option, {}), **NEEDS.get(f"{option}={value}", {})}
        drawn = Drawn({**SIMPLE, "pipeline": 3, **needed, option: value}, Random(1), 1)
        documents = drawn.topology(), drawn.workloads(), drawn.traffic(), drawn.words()
        same = made.setdefault(repr(documents), value)
        assert same == value or not (same or value), f"{option}: {same} and {value} are one plan"
