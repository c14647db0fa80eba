"""The actions of one pipeline as arrays: what each takes, makes, and completes."""

from __future__ import annotations

import numpy as np

from testbed.model.program import NONE
from testbed.pipeline.ir import Action, Kind, Schedule
from testbed.pipeline.problem import Problem
from testbed.trace.tables import KINDS


class Rows:
    """One entry per action, row after row; messages and stages are numbered from 0, NONE where there is none."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        n_stages, m = problem.n_stages, schedule.n_microbatches
        needs: list[int] = []
        makes: list[int] = []
        durations: list[float] = []
        unshards: list[int] = []
        completes: list[int] = []
        seconds = {(s, kind): problem.duration(Action(s, kind, 0)) for s in range(n_stages) for kind in KINDS}
        forward, both, gradients = Kind.F, (Kind.I, Kind.B), (Kind.W, Kind.B)
        for row in schedule.rows:
            for stage, kind, microbatch, part in row:
                assert microbatch is not None
                durations.append(seconds[stage, kind] * part.fraction)
                unshards.append(stage if kind is forward else NONE)
                completes.append(stage if kind in gradients and part.is_last else NONE)
                need = make = NONE
                # the rules of depend.consumed and depend.produced (tests hold them together), without their objects
                if kind is forward:
                    if stage > 0 and part.is_first:
                        need = 2 * (stage - 1) * m + microbatch
                    if stage < n_stages - 1 and part.is_last:
                        make = 2 * stage * m + microbatch
                elif kind in both:
                    if stage < n_stages - 1 and part.is_first:
                        need = (2 * (stage + 1) + 1) * m + microbatch
                    if stage > 0 and part.is_last:
                        make = (2 * stage + 1) * m + microbatch
                needs.append(need)
                makes.append(make)
        self.needs, self.makes = np.array(needs, np.int64), np.array(makes, np.int64)
        self.unshards, self.completes = np.array(unshards, np.int64), np.array(completes, np.int64)
        self.durations = np.array(durations)
