"""Solvers and policies that search until their own time is up, inside another search whose time is limited."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.routing.policies import PolicyChoice
from testbed.schedule.registry import family_of
from testbed.spec.choice import ScheduleChoice

TIME_LIMIT = "time_limit_s"
"""The option of families and policies that says how long they search, in wall seconds."""

_LEAST_S = 1.0
"""Of less there is no answer worth having."""


def in_time(
    choices: Sequence[ScheduleChoice], policies: Sequence[PolicyChoice | None], left_s: float
) -> tuple[list[ScheduleChoice], list[PolicyChoice | None]]:
    """The same, of which none may search for longer than its share of the time left: a policy has one for every
    schedule. As they are where time does not matter.
    """
    own_s = {choice.label: family_of(choice).default(TIME_LIMIT, choice.options()) for choice in choices}
    asked = sum(limit_s is not None for limit_s in own_s.values())
    asked += len(choices) * sum(policy is not None and policy.takes(TIME_LIMIT) for policy in policies)
    if left_s == math.inf or not asked:
        return list(choices), list(policies)
    share_s = max(_LEAST_S, left_s / asked)

    def shorter(choice: ScheduleChoice) -> ScheduleChoice:
        limit_s = own_s[choice.label]
        if limit_s is None or limit_s <= share_s:
            return choice
        return choice.model_copy(update={TIME_LIMIT: share_s})

    return [shorter(choice) for choice in choices], [
        policy if policy is None else policy.at_most(TIME_LIMIT, share_s) for policy in policies
    ]
