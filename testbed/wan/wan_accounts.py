"""What machines and their connections tell of a run on a real network, in place of a lab's links and counters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from testbed.errors import RunFailed
from testbed.judge.fidelity import ClockEvidence, NetworkEvidence
from testbed.lab.machine_witness import MachineCounts
from testbed.plan.plan import Case, Plan
from testbed.session.active_routes import Handled
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.session.network_accounts import Beside, CountedNetwork, Mark, lossless
from testbed.train.protocol import CountResent, Resent
from testbed.wan.remote_workers import ANSWER_S, Keepers
from testbed.wan.wan_messages import MachineTold, TellMachine

EXCHANGES = 3
"""Words there and back with every machine, before and after each iteration: its clock drifts."""

_COUNTING = Deadline(ANSWER_S, "workers do nothing else meanwhile")


class WanAccounts:
    """Of one session: the witness of its machines, and its network accounts."""

    def __init__(self, keepers: Keepers, loop: Loop) -> None:
        self._keepers, self._loop = keepers, loop
        self._one_of_each = {one.introduction.machine: one.introduction.rank for one in keepers.ranks}
        """By machine, a rank that is asked for what it counts."""
        self._resent = 0
        self._contradictions = 0
        self._worst_s = 0.0
        self._compared: tuple[float, float] | None = None
        """When clocks were last compared, and how well they were known then."""

    def read(self) -> MachineCounts:
        """All machines' accounts together, and their clocks compared. See Witness. Raises RunFailed."""
        if self._compared is not None:  # ranks have gone by what was known then
            at_s, uncertainty_s = self._compared
            drifted_s = uncertainty_s + self._keepers.drift_s(time.monotonic() - at_s)
            self._worst_s = max(self._worst_s, drifted_s)
        self._keepers.compare_clocks(EXCHANGES)
        self._compared = time.monotonic(), self._keepers.uncertainty_s
        told = self._keepers.ask(self._one_of_each.values(), TellMachine(), MachineTold)
        return MachineCounts(*map(sum, zip(*(each.counts for each in told.values()), strict=True)))

    def begin(self) -> None:
        """See NetworkAccounts. Raises RunFailed."""
        self._resent, self._contradictions = self._count(), self._keepers.contradictions
        self._worst_s, self._compared = 0.0, None

    def mark(self) -> Mark:
        """See NetworkAccounts. Raises RunFailed: machines of their own are not started anew."""
        raise RunFailed("workers on machines of their own cannot be replaced")

    def leave_out(self, since: Mark) -> Mark:
        """The same."""
        return self.mark()

    def carried(self) -> Sequence[float]:
        """See NetworkAccounts."""
        return ()

    def end(self, plan: Plan, case: Case, iterations: Mapping[int, int], beside: Beside = ()) -> CountedNetwork:
        """See NetworkAccounts: what the ranks' own TCP has sent again is all that tells of loss. Raises RunFailed."""
        clocks = ClockEvidence(self._worst_s, self._keepers.contradictions - self._contradictions)
        evidence = NetworkEvidence(0, self._count() - self._resent, {}, lossless(plan, case), clocks)
        return CountedNetwork(evidence, ())

    def _count(self) -> int:
        what = "count what was sent again"
        for job in range(len(self._loop.launchers)):
            self._loop.tell(job, CountResent(), what)
        return sum(reply.segments for of_job in self._loop.gather(Resent, _COUNTING, what) for reply in of_job)


@dataclass
class GivenRoutes:
    """Messages take what the real network gives them; no event changes it."""

    handled: dict[str, Handled] = field(default_factory=dict)

    def begin(self, plan: Plan, case: Case) -> None:
        """See ActiveRoutes."""

    def change(self, plan: Plan, before: Case, case: Case) -> None:
        """See ActiveRoutes. Raises NotImplementedError: plans with events are refused before."""
        raise NotImplementedError(f"{case.label}: no event can change a real network")
