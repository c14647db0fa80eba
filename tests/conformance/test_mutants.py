"""Faults in the engine of real workers do not pass for a run that trained what it should; `benchmarks/mutants.py` has
them all."""

from __future__ import annotations

import pytest
from local_workers import workers  # noqa: F401 - puts benchmarks on the path
from mutants import MUTANTS, Mutant, checks, judged

NAMES = {
    "messages come into one buffer",
    "messages come in another order than their buffers",
    "a microbatch too many in the mean",
    "every partial sum x 1.005",
    "last element of each reduced message lost",
    "no weight decay on one rank",
    "learning rate of one replica 1 % higher",
    "one tensor rank does not step its norms",
}


CHOSEN = [one for one in MUTANTS if one.what in NAMES]


@pytest.mark.parametrize("mutant", CHOSEN, ids=lambda one: one.what)
def test_a_fault_in_the_engine_is_not_trusted(mutant: Mutant) -> None:
    assert not all(check.ok for check in judged(mutant))


def test_the_engine_as_it_is_is_trusted() -> None:
    assert all(check.ok for check in checks("ZeRO-1"))


def test_there_are_as_many_as_are_named() -> None:
    assert len(CHOSEN) == len(NAMES)
