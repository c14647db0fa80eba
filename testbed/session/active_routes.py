"""The routes in force while cases are trained, and what a controller does when an event changes what they are for."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from testbed.errors import RunFailed
from testbed.lab.lab import Lab
from testbed.plan.events import Changed, changed
from testbed.plan.plan import Case, Plan
from testbed.plan.routes import routes_of_nodes
from testbed.progress import Reporter
from testbed.routing.rerouting import Moves, moves, rerouted
from testbed.units import show_time


@dataclass(frozen=True)
class Handled:
    """An event, and what the controller did; times by the session's clock. While it works, jobs wait."""

    after: int
    """Measured iterations."""
    what: Changed
    moves: Moves
    links_down_s: float
    """For links to go down, and default routes of what is left to come into force; 0 where none is lost."""
    choosing_s: float
    """For the controller to choose routes ..."""
    enforcing_s: float
    """... and to bring them into force."""

    def __str__(self) -> str:
        if not self.moves.flows_moved and not self.what.lost:
            return f"{self.what} after measured iteration {self.after}"
        took = show_time(self.choosing_s + self.enforcing_s)
        moved = f"{self.moves.flows_moved} of {self.moves.flows} flows moved ({self.moves.flows_cut} had to)"
        return f"{self.what} after measured iteration {self.after}: {moved}, the controller took {took}"


def require_same_choice(plan: Plan, before: Case, case: Case) -> None:
    """Raises RunFailed where the controller would choose other routes than the plan has.

    Afterwards all that it needs is imported and compiled: it is timed when it chooses again.
    """
    assert case.continues is not None
    if rerouted(plan, before, case) != case.routes:
        raise RunFailed(
            f"{case.label}: {case.continues.policy or 'the default'} chooses other routes than the plan has"
        )


class RoutesInForce:
    """Puts the routes of cases into force in a lab, and keeps what the results say of it."""

    def __init__(self, lab: Lab, reporter: Reporter) -> None:
        self._lab, self._reporter = lab, reporter
        self.enforced: dict[str, dict[str, list[str]]] = {}
        """By a case's label, what keeps its flows to their routes."""
        self.handled: dict[str, Handled] = {}
        """By the label of a case that goes on from another, the event between them."""

    def begin(self, plan: Plan, case: Case) -> None:
        """The routes of a case on the whole network. Raises RunFailed."""
        self._lab.routes.restore()
        self._use(plan, case)

    def change(self, plan: Plan, before: Case, case: Case) -> None:
        """Take away what `case` is without; flows take the routes that the controller chooses now. Raises RunFailed."""
        assert case.continues is not None
        what = changed(plan, before, case)
        begin = time.monotonic()
        if what.lost:
            self._lab.routes.lose(*what.lost)
        down = time.monotonic()
        answer = replace(case, routes=rerouted(plan, before, case))
        chosen = time.monotonic()
        self._use(plan, answer)
        end = time.monotonic()
        moved = moves(plan, before, answer)
        handled = Handled(case.continues.after, what, moved, down - begin, chosen - down, end - chosen)
        self._reporter.note(str(handled))
        self.handled[case.label] = handled

    def _use(self, plan: Plan, case: Case) -> None:
        enforced = self._lab.routes.use(routes_of_nodes(plan, case))
        if plan.enforcement == "ports":
            self._reporter.note(f"{case.label}: {enforced}")
        self.enforced[case.label] = enforced.as_json()
