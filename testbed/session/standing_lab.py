"""A lab and its workers that stand for several plans, measured one after another, that need the same ones.

What differs between the cells of a study are mostly links and schedules. To make containers and to fork workers into
them, each of which then touches its memory for the first time, takes a guest a quarter of such a cell's time. The wires
are laid anew for every plan, and workers connect anew: nothing of the plan before is left in the network.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from testbed.lab.confinement import let_workers_write, possible
from testbed.lab.host_settings import HostPriority
from testbed.lab.lab import Lab, serves_as_well
from testbed.plan.costs import largest_burst_bytes
from testbed.plan.plan import Plan
from testbed.progress import Reporter
from testbed.session import deadlines
from testbed.session.building import built
from testbed.session.deadlines import Deadline
from testbed.session.loop import Loop
from testbed.session.references import all_kept
from testbed.train.launcher import Launcher
from testbed.train.protocol import WorldSpec

_ENDING_S = 0.5
"""And two round trips: so long connections take to end. What is left when the wires go would try again and again."""


class StandingLab:
    """Its processes and the lab end as `stack` is left, whatever happened meanwhile."""

    def __init__(self, stack: ExitStack, shown: Sequence[str] = ()) -> None:
        """`shown`: directories that a job's code may read (lab/shown.py)."""
        self._shown = tuple(shown)
        self.launchers: Sequence[Launcher] = ()
        self.confinement = possible()
        """Of its workers."""
        self._stack = stack
        self._plan: Plan | None = None
        self._lab: Lab | None = None
        self._connected = False

    @property
    def scratch(self) -> Path:
        """A directory that all containers see."""
        return self._scratch

    def suits(self, plan: Plan, kept_references: Path | None) -> bool:
        """Whether it can be used for this plan after the one before: a fork server that has workers trains nothing."""
        return (
            self._plan is not None
            and serves_as_well(self._plan, plan)
            and [(job.name, job.mesh, job.nodes) for job in self._plan.jobs]
            == [(job.name, job.mesh, job.nodes) for job in plan.jobs]
            and [len(each.workers) for each in self.launchers] == [job.mesh.size for job in plan.jobs]
            and all_kept(plan, kept_references)
        )

    def replace_workers(self, loop: Loop, world: WorldSpec, deadline: Deadline) -> None:
        """End those of the only job, of which one has failed or that are to be others, and have new ones join a world.

        Raises RunFailed.
        """
        (launcher,) = self.launchers
        launcher.end()
        self.out_of_memory()  # what befell those that are gone says nothing of the new ones
        loop.start([world], deadline)

    def out_of_memory(self) -> str | None:
        """The nodes that had more than their limits since this was asked last, in words; None: none."""
        return None if self._lab is None else self._lab.groups.out_of_memory()

    def leave(self) -> None:
        """End what its workers have to do with each other, before another plan that it suits. Raises RunFailed.

        Returns when the last packets of their connections have come.
        """
        assert self._plan is not None
        with Loop(self.launchers) as loop:
            loop.leave(deadlines.of_connecting(self._plan))
        time.sleep(_ENDING_S + 2 * deadlines.longest_round_trip_s(self._plan))
        for store in self._scratch.iterdir():
            store.unlink()

    def reconnect(self, loop: Loop, worlds: Sequence[WorldSpec], deadline: Deadline) -> None:
        """Have all workers end their connections, and join these worlds over new ones. Raises RunFailed."""
        self.leave()
        loop.restart(worlds, deadline)

    def launch(self, plan: Plan) -> None:
        """Have fork servers for a plan's jobs, of which each imports torch meanwhile. Raises RunFailed."""
        if self._lab is None:
            self._scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-")))
            let_workers_write(self._scratch)
            self.confinement = possible(self._scratch)._replace(shown=self._shown)
            self.launchers = [self._stack.enter_context(Launcher(self.confinement)) for _ in plan.jobs]
        self._plan = plan

    def build(self, reporter: Reporter, *, shaper: str, host_priority: HostPriority) -> Lab:
        """The lab of the plan. Raises MachineLacks or RunFailed."""
        assert self._plan is not None
        plan, burst = self._plan, largest_burst_bytes(self._plan)
        if self._lab is not None:
            with reporter.step(f"wiring {plan.network.name}"):
                self._lab.rewire(plan, largest_burst_bytes=burst)
            return self._lab
        lab = built(plan, reporter, shaper=shaper, host_priority=host_priority, largest_burst_bytes=burst)
        self._lab = self._stack.enter_context(lab)
        return self._lab

    def connect(self, loop: Loop, worlds: Sequence[WorldSpec], deadline: Deadline) -> None:
        """Have the workers of every job connect. Raises RunFailed."""
        if self._connected:
            loop.restart(worlds, deadline)
        else:
            loop.start(worlds, deadline)
        self._connected = True
