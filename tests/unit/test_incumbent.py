"""The keeper of a search's best so far: what it keeps, what it says, what ends it."""

from __future__ import annotations

import math

import pytest

from testbed.search.incumbent import Incumbent, Standing


def test_only_what_is_better_is_kept_and_said() -> None:
    told: list[Standing] = []
    incumbent: Incumbent[str] = Incumbent(60.0, 1.0, told.append)
    offered = [incumbent.offer(name, makespan) for name, makespan in (("slow", 3.0), ("slower", 4.0), ("fast", 2.0))]
    assert offered == [True, False, True]
    assert (incumbent.best, incumbent.best_s) == ("fast", 2.0)
    assert [standing.makespan_s for standing in told] == [3.0, 2.0]
    assert told[-1].gap == 0.5
    assert not incumbent.offer("never", math.nan)


def test_a_bound_is_never_above_the_best() -> None:
    """A search's own rounding may put it there: then the two meet, and nothing is left to gain."""
    incumbent: Incumbent[str] = Incumbent(60.0, 1.0)
    incumbent.offer("first", 3.0)
    assert not incumbent.over()
    assert not incumbent.raise_bound(0.5)
    assert incumbent.raise_bound(3.5)
    assert incumbent.bound_s == 3.0
    assert incumbent.over()
    incumbent.offer("below the bound", 2.0)
    assert (incumbent.bound_s, incumbent.standing().gap) == (2.0, 0.0)


def test_a_time_limit_ends_it() -> None:
    incumbent: Incumbent[str] = Incumbent(0.0)
    while incumbent.left_s() >= 0:
        pass
    assert incumbent.over()


def test_ctrl_c_ends_the_body_and_nothing_else() -> None:
    told: list[Standing] = []
    incumbent: Incumbent[str] = Incumbent(60.0, progress=told.append, unit_s=0.5)
    with incumbent.until_interrupted():
        incumbent.offer("first", 3.0)
        raise KeyboardInterrupt
    assert incumbent.interrupted
    assert [(standing.makespan_s, standing.interrupted) for standing in told] == [(1.5, False), (1.5, True)]
    with pytest.raises(ZeroDivisionError), incumbent.until_interrupted():
        _ = 1 / 0
