"""What a swap costs: what it is assumed to at first, then what swaps of its kind have really taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from testbed.adaptation.adaptable_job import AdaptableJob
from testbed.adaptation.candidate import JobCandidate, JobSetting
from testbed.pipeline.problem import Problem
from testbed.plan.moved_weights import moved_weights, moving_s, used_up
from testbed.plan.plan import Plan

SCHEDULE, MICROBATCHES, ROUTES, WEIGHTS, STARTS = "schedule", "microbatches", "routes", "weights", "starts"
"""What a swap may change: the order of actions alone; messages, which are posted anew; where flows go; where stages
are, so that weights move; when jobs begin."""

Sends = Callable[[JobSetting, JobSetting], float]
"""Seconds for what a job sends to swap from a candidate in one setting to one in another."""


def kind_of(one: JobSetting, other: JobSetting) -> str:
    """Of a swap between candidates in these settings."""
    routes = [{path for path in setting.paths if path.over} for setting in (one, other)]
    changed = [MICROBATCHES] if one.microbatches != other.microbatches else []
    changed += [ROUTES] if routes[0] != routes[1] else []
    changed += [WEIGHTS] if one.stages != other.stages else []
    changed += [STARTS] if one.starts_s != other.starts_s else []
    return " and ".join(changed) or SCHEDULE


def sending_s(
    job: AdaptableJob, plan: Plan, problems: Callable[[JobSetting], Problem], one: JobSetting, other: JobSetting
) -> float:
    """What a swap sends takes so long on the network of a plan, where iterations in a setting have these problems:
    weights, or the shortest of messages for all that is posted.
    """
    workload = job.plan.jobs[0].workload
    if one.stages == other.stages:
        if one.microbatches == other.microbatches:
            return 0.0
        before = problems(one)
        return moving_s(before, [], before.route, used_up(before, workload, moves=False))
    problem = problems(other)
    before = problems(one) if one.paths == other.paths else problem  # other paths may have links of their own
    moved = moved_weights(job.plan, 0, one.stages, other.stages)
    return moving_s(problem, moved, job.routes_between(plan, other, problem), used_up(before, workload, moves=True))


def nothing_sent(one: JobSetting, other: JobSetting) -> float:
    """Of swaps that send nothing."""
    return 0.0


class SwapCosts:
    """Seconds that a job does not train: for what it sends, as links are believed to be, and for all else, by the kind
    of swap.
    """

    def __init__(self, assumed_s: float, sends_s: Sends = nothing_sent) -> None:
        """`assumed_s` is for all else, as long as there was no swap of that kind."""
        self.assumed_s, self.sends_s = assumed_s, sends_s
        self._beyond_s: dict[str, list[float]] = {}

    @property
    def known(self) -> list[str]:
        """The kinds of swaps that there were."""
        return list(self._beyond_s)

    def learn(self, one: JobSetting, other: JobSetting, seconds: float) -> None:
        """A swap from a candidate in one setting to one in the other has taken so long."""
        self._beyond_s.setdefault(kind_of(one, other), []).append(max(0.0, seconds - self.sends_s(one, other)))

    def beyond_s(self, kind: str) -> float:
        """What one of a kind is taken to cost beside what it sends: the median of those that there were, else what is
        assumed.
        """
        return median(self._beyond_s[kind]) if kind in self._beyond_s else self.assumed_s

    def between(self, one: JobSetting, other: JobSetting) -> float:
        """What a swap from a candidate in one setting to another one in the other is taken to cost."""
        return self.sends_s(one, other) + self.beyond_s(kind_of(one, other))

    def matrix(self, candidates: Sequence[JobCandidate]) -> NDArray[np.float64]:
        """From every one of these candidates, by row, to every other one; 0 to itself."""
        settings = list(dict.fromkeys(candidate.setting for candidate in candidates))
        of_settings = np.array([[self.between(one, other) for other in settings] for one in settings])
        places = [settings.index(candidate.setting) for candidate in candidates]
        found: NDArray[np.float64] = of_settings[np.ix_(places, places)]
        np.fill_diagonal(found, 0.0)
        return found
