"""Compiles all that is compiled, once: `python -m testbed.schedule.compile_all` in `make setup`."""

from __future__ import annotations

from testbed.pipeline.problem import uniform
from testbed.pipeline.ticks import in_ticks
from testbed.schedule.one_f_one_b import one_f_one_b


def event_model() -> None:
    """Have machine code of the event model, which is compiled where the user's cache has none."""
    from testbed.model.compiled import makespan

    problem = in_ticks(uniform(2, 2, delay_s=2.0, wire_s=0.5))
    makespan(problem, one_f_one_b(problem))


def warm() -> None:
    """Use every compiled function once, each called by name: a search ends before them where a start is optimal."""
    from testbed.schedule.greedy import greedy_rows
    from testbed.search.anneal import anneal
    from testbed.search.list_scheduler import list_schedule
    from testbed.search.local_search import improve

    event_model()
    problem = in_ticks(uniform(4, 8, delay_s=2.0, wire_s=0.5))
    greedy_rows(problem, 4)
    schedule = list_schedule(problem)
    improve(problem, schedule, moves=1)
    anneal(problem, schedule, moves=1)


if __name__ == "__main__":
    warm()
