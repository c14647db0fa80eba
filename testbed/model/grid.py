"""A step of time that durations are multiples of, where there is one."""

from __future__ import annotations

import math
from collections.abc import Iterable

from testbed.model.gather import idle_gather_s, idle_reduction_s
from testbed.pipeline.problem import Problem


def time_step_s(problem: Problem, smallest_s: float) -> float:
    """A common divisor of all durations, delays and times on a wire, if it is no less than `smallest_s`; else that."""
    return common_step(_times(problem), smallest_s)


def common_step(values: Iterable[float], smallest: float) -> float:
    """A number that all values are multiples of, if one no less than `smallest` is found; else `smallest`."""
    values, divisor = set(values), 0.0
    for value in values:
        rest = value
        while rest > smallest / 2:  # Euclid's algorithm, blind to what a float cannot tell
            divisor, rest = rest, math.fmod(divisor, rest) if divisor else 0.0
            if rest and divisor - rest < 1e-9 * divisor:
                rest = 0.0
    exact = divisor >= smallest and all(abs(v / divisor - round(v / divisor)) < 1e-7 for v in values)
    return divisor if exact else smallest


def _times(problem: Problem) -> set[float]:
    values = {
        *problem.forward_s,
        *problem.input_s,
        *problem.weight_s,
        *problem.backward_s,
        *(link.delay_s for link in problem.links),
        problem.handover_s,
        problem.unnoticed_wait_s,
    }
    values |= {link.seconds_per_byte * size for link in problem.links for size in problem.message_bytes}
    values |= {idle_gather_s(problem, stage) for stage in range(problem.n_stages)}
    values |= {idle_reduction_s(problem, stage) for stage in range(problem.n_stages)}
    return values
