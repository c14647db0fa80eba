"""Judges whole cases of one plan by the event model: how long every job takes, which case is best, when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import Field

from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.plan.plan import Case, Plan
from testbed.planning.prediction import iteration_times, worst_times
from testbed.search.incumbent import Incumbent, Watch

Key = tuple[float, ...]
"""Of a case, its jobs' iterations over `Judge.baseline_s`, the slowest job first. The smaller is better, as tuples are
compared: the two-layer idea of max-min fairness, with iteration times in the place of rates."""

EvaluationLimit = Annotated[int, Field(ge=1, le=10**6)]

_DIGITS = 9
"""Of a key: what differs by less is the same."""


class CaseEvaluator:
    """Keeps the best of the cases that it is offered.

    Where predictions are ranges, by who comes first of messages that meet, a case is worth what it may take at worst.
    That is asked of what would else be the best one; a case that is not, even as predicted, is worth its prediction.

    The same offers give the same best; `over` says that `evaluations` have been made or, which cannot be repeated, that
    `time_limit_s` wall seconds have gone by.
    """

    def __init__(
        self,
        plan: Plan,
        evaluations: int,
        time_limit_s: float,
        watch: tuple[str, Watch | None],
        *,
        begin: Case | None = None,
    ) -> None:
        """`plan` has the flows that all cases have routes for; `watch` is whom to tell, and under what name. `begin` is
        the first case that is offered: the plan's first one unless given, where that itself may not be the answer.

        Raises BadInput for a job whose times only a run can tell.
        """
        import testbed.model.compiled  # noqa: F401 - slow to import: from now on the event model runs compiled

        name, watcher = watch
        self.plan, self.evaluations = plan, evaluations
        self.incumbent: Incumbent[Case] = Incumbent(
            time_limit_s, progress=None if watcher is None else partial(watcher, name)
        )
        self._known: dict[object, Key] = {}
        self._kept: list[Case] = []
        """So that what is known by its identity stays where it is."""
        self.baseline_s = _alone(plan, plan.cases[0])
        """Per job, an iteration of it alone in the plan's first case."""
        self._least_s = [_work_s(costs.problem_of_case(plan, plan.cases[0], job=job)) for job in range(len(plan.jobs))]
        self.incumbent.best = begin or plan.cases[0]
        self.best_key: Key = (math.inf,)
        self.offer(self.best)

    @property
    def best(self) -> Case:
        """The best case so far."""
        return self.incumbent.best

    @property
    def judged(self) -> int:
        """How many different cases it has seen."""
        return len(self._known)

    def offer(self, case: Case) -> Key:
        """What a case is worth; the best so far is kept."""
        mark = case.routes, case.starts_s, tuple(map(id, case.jobs))
        if mark not in self._known:
            self._kept.append(case)
            self._known[mark] = self._key(iteration_times(self.plan, case))
            if self._known[mark] < self.best_key:
                worst_s = worst_times(self.plan, case)
                self._known[mark] = self._key(worst_s)
                if self._known[mark] < self.best_key:
                    self.best_key = self._known[mark]
                    self._keep(case, worst_s)
        return self._known[mark]

    def _keep(self, case: Case, times_s: Sequence[float]) -> None:
        """Make it the incumbent; what is told of it is the job that loses most by the others."""
        ratios = [time_s / alone_s for time_s, alone_s in zip(times_s, self.baseline_s, strict=True)]
        slowest = ratios.index(max(ratios))
        self.incumbent.keep(case, times_s[slowest], self._least_s[slowest])

    def _key(self, times_s: Sequence[float]) -> Key:
        times = zip(times_s, self.baseline_s, strict=True)
        return tuple(sorted((round(time_s / baseline, _DIGITS) for time_s, baseline in times), reverse=True))

    def over(self) -> bool:
        """Whether nothing more should be tried: enough has been, or nothing is left to gain."""
        least = max(least / baseline for least, baseline in zip(self._least_s, self.baseline_s, strict=True))
        gained = self.best_key[0] <= least * (1 + 10.0**-_DIGITS)
        return self.judged >= self.evaluations or self.incumbent.left_s() < 0 or gained

    def seconds(self, case: Case) -> tuple[float, ...]:
        """Per job, the iteration in a case, at worst."""
        return worst_times(self.plan, case)


def _alone(plan: Plan, case: Case) -> tuple[float, ...]:
    if len(plan.jobs) == 1:
        return iteration_times(plan, replace(case, starts_s=()))
    found = []
    for number in range(len(plan.jobs)):
        schedule = costs.schedule_of(plan, case, job=number)
        if schedule is None:
            return iteration_times(plan, case)  # which says what is missing
        found.append(float(costs.predict_case(plan, case, schedule, job=number).makespans()[0]))
    return tuple(found)


def _work_s(problem: Problem) -> float:
    """What the busiest rank computes in an iteration: no order and no route makes it less."""
    least = [
        forward + inputs + weights
        for forward, inputs, weights in zip(
            problem.forward_s, problem.least_input_s, problem.least_weight_s, strict=True
        )
    ]
    ranks = problem.stage_to_rank
    each = [sum(stage_s for stage_s, holder in zip(least, ranks, strict=True) if holder == rank) for rank in set(ranks)]
    return problem.n_microbatches * max(each)
