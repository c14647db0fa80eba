"""What a policy is that chooses more than routes: from a plan it makes whole cases (schedules, start times, routes)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from testbed.plan.plan import Case, Flow, Plan
from testbed.search.incumbent import Watch

ELEPHANT_BYTES = 1e6
"""Of an iteration: what sends less keeps to its default route. Our choice; the paper's threshold is not known to us."""

DETOUR = 1
"""Links that a route may have more than the shortest one: all spines of a Clos, two links instead of one in a mesh."""


class Reach(NamedTuple):
    """Which flows are routed, and which routes they may take."""

    elephants_from: float = ELEPHANT_BYTES
    """Bytes in an iteration; smaller flows keep to their default routes."""
    detour: int = DETOUR
    """Links more than the shortest route has."""


USUAL_REACH = Reach()


class PlannerInput(NamedTuple):
    """What a planner starts from."""

    plan: Plan
    """With the schedules that were asked for as its cases, on their default routes."""
    reach: Reach
    watch: Watch | None = None
    """Told of better cases as they are found."""


class PlannedCases(NamedTuple):
    """Cases, and what they need of a plan."""

    flows: tuple[Flow, ...]
    """Those of the plan, and behind them what other schedules of these cases send: every case has a route for each."""
    cases: tuple[Case, ...]
    remarks: tuple[str, ...] = ()
    """What a user should know, each of one case or of all."""


@dataclass(frozen=True)
class Planner:
    """A policy that chooses more than routes; a policy that chooses routes alone is a plain function."""

    plan: Callable[..., PlannedCases]
    """(Task, **options) -> Planned. Parameters behind the task are options, as a schedule family has them."""
