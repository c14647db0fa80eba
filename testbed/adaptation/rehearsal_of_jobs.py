"""The world of a rehearsal of several jobs that train in rounds over links that they share."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.adaptation.candidate import JobCandidate, Prospect
from testbed.adaptation.jobs_in_rounds import JobsInRounds, best_starts_of, parts
from testbed.adaptation.rehearsal_changes import Change
from testbed.adaptation.rehearsal_world import SlotVariation, World
from testbed.adaptation.sightings import PROBE_BYTES, Path, Sighting
from testbed.adaptation.swap_costs import SwapCosts
from testbed.model.lower import Load
from testbed.model.simulate import simulate_jobs
from testbed.pipeline.link import LinkCost, crossing_s
from testbed.pipeline.problem import Problem
from testbed.plan import costs
from testbed.trace.tables import Trace

_TYPICAL = -1
"""In place of an iteration, where slots are not drawn."""


class JobsWorld(World):
    """Of jobs in rounds: the next one begins when all have ended."""

    def __init__(self, jobs: JobsInRounds, changes: Sequence[Change], drawn: SlotVariation) -> None:
        super().__init__(jobs.plan, changes, drawn)
        self.jobs = jobs
        self._problems: dict[int, list[Problem]] = {}
        self._traces: dict[tuple[int, JobCandidate, int], list[Trace]] = {}

    def seen(self, runs: Prospect, iteration: int) -> Sighting:
        """See World."""
        state, probes_s = self.state(iteration), dict[Path, float]()
        for path in runs.setting.paths:
            links, handover_s = self.crossed(path, state, runs)
            probes_s[path] = crossing_s(links, PROBE_BYTES) + handover_s
        return self.jobs.seen(self._parts(runs, state, iteration), probes_s)

    def times_s(self, runs: Prospect, iteration: int) -> tuple[float, ...]:
        """See World."""
        return tuple(float(part.makespans()[0]) for part in self._parts(runs, self.state(iteration), iteration))

    def typical_s(self, runs: Prospect, state: int) -> float:
        """See World."""
        found = self._parts(runs, state, _TYPICAL)
        return sum(float(part.makespans()[0]) for part in found) / len(found)

    def swap_costs(self, iteration: int, swap_s: float) -> SwapCosts:
        """Nothing is sent for other starts."""
        return SwapCosts(swap_s)

    def made_for(self, state: int) -> list[Prospect]:
        """The starts that are best then."""
        return [self.jobs.starting(best_starts_of(self.jobs, self._loads(self.jobs.begins, state, _TYPICAL)))]

    def crossed(self, path: Path, state: int, runs: Prospect) -> tuple[Sequence[LinkCost], float]:
        """See World."""
        problem = self._problems_of(state)[self.jobs.watched(path)]
        return [problem.links[index] for index in path.route], problem.handover_s

    def _problems_of(self, state: int) -> list[Problem]:
        if state not in self._problems:
            truth, (case, *_) = self.truth(state), self.jobs.plan.cases
            self._problems[state] = [
                truth.slow(costs.timed_problem(truth.plan, case, schedule, job=number), number)
                for number, schedule in enumerate(self.jobs.schedules)
            ]
        return self._problems[state]

    def _loads(self, runs: Prospect, state: int, iteration: int) -> list[Load]:
        loads = self.jobs.loads(self._problems_of(state), runs.setting.starts_s)
        if iteration == _TYPICAL:
            return loads
        return [
            load._replace(slots_s=self.drawn.slots_s(load.problem, iteration, number))
            for number, load in enumerate(loads)
        ]

    def _parts(self, runs: Prospect, state: int, iteration: int) -> list[Trace]:
        """Of every job, from its own start."""
        key = state, runs.candidate, iteration if self.drawn.variation else _TYPICAL
        if key not in self._traces:
            trace = simulate_jobs(self._loads(runs, state, key[-1]))
            self._traces[key] = parts(self.jobs, trace, runs.setting.starts_s)
        return self._traces[key]
