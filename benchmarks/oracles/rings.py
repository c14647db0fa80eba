"""How long rings of all-reduces take that share directions: max-min-fair rates of what is sending, step by step."""

from __future__ import annotations

import sys
from functools import cache
from typing import cast

import numpy as np

from testbed.model.compile import CompiledFunctions, compiled_modules
from testbed.model.network import Floats, Ints
from testbed.routing.loops import LARGE, TOLERANCE, fill, loops

COMPILED = ("reduce_rings",)
"""What `compiled` compiles of this module."""


@cache
def compiled() -> CompiledFunctions:
    """The function below for many flows."""
    return compiled_modules([sys.modules[__name__]], using=cast(CompiledFunctions, loops(LARGE)))


def reduce_rings(first: Ints, crossed: Ints, rate_bps: Floats, ring: Ints, steps: Ints, message_bits: Floats) -> Floats:
    """Per ring, seconds from the common start until its last step is over, at max-min-fair rates of what is sending.

    Every flow of a ring sends one message in each step, and the next step waits for all of them. `ring` is per flow,
    `steps` and `message_bits` are per ring. Delays are left out.
    """
    left, step, end_s = message_bits[ring], np.zeros(len(steps), np.int64), np.zeros(len(steps))
    sending, members = np.ones(len(ring), np.bool_), np.bincount(ring, minlength=len(steps))
    waiting, now = members.copy(), 0.0
    for one in range(len(steps)):
        if steps[one] == 0:
            step[one] = -1
    for flow in range(len(ring)):
        sending[flow] = steps[ring[flow]] > 0
    while sending.any():
        rates = fill(first, crossed, rate_bps, sending)
        passed = np.inf
        for flow in range(len(ring)):
            if sending[flow]:
                passed = min(passed, left[flow] / rates[flow])
        now += passed
        for flow in range(len(ring)):
            if sending[flow]:
                left[flow] = left[flow] - passed * rates[flow] if rates[flow] < np.inf else 0.0
                if left[flow] <= TOLERANCE * message_bits[ring[flow]]:
                    sending[flow] = False
                    waiting[ring[flow]] -= 1
        for one in range(len(steps)):
            if waiting[one] == 0 and step[one] >= 0:
                step[one] += 1
                if step[one] < steps[one]:
                    waiting[one] = members[one]
                else:
                    step[one], end_s[one] = -1, now
        for flow in range(len(ring)):
            if not sending[flow] and step[ring[flow]] >= 0 and waiting[ring[flow]] == members[ring[flow]]:
                sending[flow], left[flow] = True, message_bits[ring[flow]]
    return end_s
