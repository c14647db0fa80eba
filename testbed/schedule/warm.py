"""Compiles all that is compiled, so that no command has to: `python -m testbed.schedule.warm`, part of `make setup`."""

from __future__ import annotations

from testbed.pipeline.problem import uniform
from testbed.schedule.registry import generate


def warm() -> None:
    """Use every compiled function once, on a small problem that no start solves."""
    problem = uniform(4, 8, delay_s=2.0, wire_s=0.5)
    generate("search", problem, evaluations=1)


if __name__ == "__main__":
    warm()
