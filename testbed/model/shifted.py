"""The event model of the same jobs that begin at other times: lowered once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.model.lower import Load, lower
from testbed.model.simulate import ends_by_job, jobs_in_ticks, refuse_deadlock, run, start_in_ticks


class ShiftedJobs:
    """Jobs that share a network, an iteration of each, which begin at other times every time."""

    def __init__(self, loads: Sequence[Load]) -> None:
        """Raises ValueError when the jobs do not have the same links."""
        self._loads = [load._replace(start_s=0.0) for load in loads]
        self._tick_s, counted = jobs_in_ticks(self._loads)
        self._program, self._names = lower(counted)
        self._moves = []
        """Per job, which of the program's moments come later by one where it begins later by one."""
        for number, load in enumerate(counted):
            later, _ = lower([*counted[:number], load._replace(start_s=1.0), *counted[number + 1 :]])
            self._moves.append((later.begin_s - self._program.begin_s, later.first_s - self._program.first_s))

    def times_s(self, starts_s: Sequence[float]) -> list[float]:
        """Per job, seconds from its start to its last end or reduction, as `ends_of_jobs` has the ends.

        `starts_s` are seconds from the common start. Raises DeadlockError when a schedule cannot finish.
        """
        begin_s, first_s = self._program.begin_s, self._program.first_s
        for (begins, firsts), start_s in zip(self._moves, starts_s, strict=True):
            start = start_in_ticks(start_s, self._tick_s)
            begin_s, first_s = begin_s + start * begins, first_s + start * firsts
        program = self._program._replace(begin_s=begin_s, first_s=first_s)
        times = run(program)
        refuse_deadlock(program, self._names, times, self._loads)
        ends = ends_by_job(program, times, self._names)
        return [self._tick_s * end - start_s for end, start_s in zip(ends, starts_s, strict=True)]
