"""Which test files have plans trained in a boot that they share (vm/one_boot.py), and in which one of a few."""

from __future__ import annotations

from functools import cache
from pathlib import Path

BOOTS = 2
"""A boot and its imports cost some five CPU-seconds; of two the longer lasts little more than half as long as one."""


@cache
def shares_a_boot(file: Path) -> bool:
    return "\nfrom one_boot import " in file.read_text(encoding="utf-8")


@cache
def boot_of(file: Path) -> int:
    """The number of a file's boot: files of a directory that share boots have them by turns, by name."""
    return [one for one in sorted(file.parent.glob("test_*.py")) if shares_a_boot(one)].index(file) % BOOTS
