"""Which processor has the least to do: a guest runs on one alone."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

_SAMPLE_S = 0.1


def idlest_cpu() -> int:
    """The one CPU for a guest.

    Its kernel has one anyway, and a host process for every process: only one of them can run at a time. On several
    CPUs each turn is a wake-up across CPUs, on a virtual machine of a halted one: boots take twice as long, and a
    guest in real time does not hold 1 Gbit/s.
    """
    before = _idle_ticks()
    time.sleep(_SAMPLE_S)
    after = _idle_ticks()
    idle = {cpu: after[cpu] - before[cpu] for cpu in os.sched_getaffinity(0)}
    # by chance among the idlest: guests that start together should not all choose the first
    return random.choice([cpu for cpu, ticks in idle.items() if ticks >= max(idle.values()) - 1])


def _idle_ticks() -> dict[int, int]:
    """Ticks (10 ms) that every CPU was idle since the machine's start, by CPU (proc(5): the 4th column)."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    rows = [line.split() for line in lines if re.match(r"cpu\d", line)]
    return {int(row[0][3:]): int(row[4]) for row in rows}
