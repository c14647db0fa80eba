"""Training a case again where the machine was busy otherwise: told by its own accounts, never by what was measured.

A host that takes processors away does so for seconds, then not for minutes. So what was trained meanwhile is put aside,
and trained anew once the machine is quiet. What had been measured is told beside the verdict, from evidence.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from testbed.judge.fidelity import DisturbedTry, disturbed_share
from testbed.judge.iterations import IterationRow
from testbed.lab import host_settings
from testbed.lab.disturbance import look, wait_for_quiet
from testbed.session.case import TrainedPlan
from testbed.session.running import Running
from testbed.session.trained import TrainedCase
from testbed.thresholds import DISTURBED_SHARE, QUIET_LIMIT_S


@dataclass(frozen=True)
class RepeatedTraining:
    """A training, and how often it may be repeated."""

    running: Running
    profiled: Sequence[IterationRow]
    """Iterations of an unpaced job, measured before any case."""
    repeats: int
    """At most."""

    def trained(self, train: Callable[[], TrainedPlan], begin: Callable[[Sequence[TrainedCase]], None]) -> TrainedPlan:
        """What `train` leaves behind, called again, once `begin` has the network as it was before it, while the machine
        could explain more of a job's median iteration than the limit.

        Where a controller decides, it is called once: what that has learned is of one training. Raises RunFailed.
        """
        tries: list[DisturbedTry] = []
        repeats = self.repeats if self.running.adaptation is None else 0
        while True:
            found = train()
            worst = max(self._disturbed(done) for done in found.done)
            if worst.explained <= DISTURBED_SHARE.value or len(tries) == repeats:
                return found._replace(done=[replace(done, disturbed_before=tries) for done in found.done])
            tries.append(worst)
            self.running.results.forget_new()
            self.running.reporter.note(
                f"the machine was busy otherwise, which could explain {worst.explained:.1%} of the median iteration "
                f"(limit {DISTURBED_SHARE.value:.0%}): again, once it is quiet, after {QUIET_LIMIT_S:g} s at the latest"
            )
            with host_settings.real_time(self.running.real_time):
                wait_for_quiet(QUIET_LIMIT_S, lambda: look(()), lambda _seen, _left_s: None)
            begin(found.done)

    def _disturbed(self, done: TrainedCase) -> DisturbedTry:
        """Of the job whose median iteration the machine could explain most of."""
        found = [DisturbedTry(0.0, 0.0)]
        for job in done.jobs:
            if rows := [row for row in job.rows if not row.warmup]:
                baseline = self.profiled if job.costs is None else job.costs.rows
                found.append(DisturbedTry(disturbed_share(rows, baseline), job.median_s))
        return max(found)
