"""A job that adapts in a lab: what it sees of its own iterations, and what its controller decides by that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from testbed.adaptation.controller import Adapting, Step, choose
from testbed.adaptation.estimates import named
from testbed.adaptation.prospects import adaptable_job
from testbed.adaptation.sightings import PROBE_BYTES, Pair, sighting
from testbed.errors import RunFailed
from testbed.plan.plan import JobSchedule, Plan
from testbed.planning.drawn_iterations import phase_of
from testbed.planning.prediction import parts_of, predict_training
from testbed.trace.predictions import predicted_times_s
from testbed.trace.tables import Trace


class ProbedNetwork(Protocol):
    """A network on which a job may send a packet of its own while nothing else is on its way: a lab."""

    def probe_s(self, source: str, target: str, frame_bytes: int) -> float:
        """Seconds that it takes from one node to another. Raises RunFailed where none arrives."""


class AdaptingLab:
    """Asks a plan's controller after every measured iteration, and keeps what came of that."""

    def __init__(self, plan: Plan, network: ProbedNetwork) -> None:
        """Raises BadInput for a plan that no controller can adapt."""
        assert plan.adaptation is not None
        asked, (job,) = plan.adaptation, plan.jobs
        self._job = adaptable_job(plan, asked.choices)
        self._nodes, self._network = job.nodes, network
        controller, begins = choose(asked.controller), plan.cases[0].jobs[0]
        self._adapting = Adapting(self._job, controller.begin(), asked.swap_s, begins.choice.label)
        self._stages = begins.stage_to_rank
        (never,) = parts_of(plan, plan.cases[0], predict_training(plan, plan.cases[0]).trace)
        self._never_s = predicted_times_s(never, phase_of(plan, plan.cases[0]).measured).tolist()
        self._rows: list[dict[str, Any]] = []
        self._asked = asked

    @property
    def document(self) -> dict[str, Any]:
        """`adaptation` in comparison.json."""
        return {"controller": self._asked.controller, "swap_s": self._asked.swap_s, "iterations": self._rows}

    def after(self, iteration: int, ended: Trace, *, over: bool) -> JobSchedule | None:
        """See session.case.RunningController."""
        probes_s = self._probes_s()
        runs = self._adapting.running.label
        step = self._adapting.after(iteration - 1, sighting(ended, self._job.sites, probes_s))
        step = step._replace(swapped_to=None, expected_s=step.stays_s) if over else step
        self._keep(iteration - 1, runs, float(ended.makespans()[0]), probes_s, step)
        if step.swapped_to is None:
            return None
        label, rows = step.swapped_to.label, step.swapped_to.schedule.rows
        choice = next(choice for choice in self._job.choices if choice.label == label)
        return JobSchedule(choice.model_copy(update={"label": f"{label} of {iteration}"}), self._stages, rows, None)

    def _probes_s(self) -> dict[Pair, float]:
        """A link that is down says nothing."""
        found = {}
        for pair, (source, target) in self._job.pairs(self._job.problems[0]).items():
            try:
                found[pair] = self._network.probe_s(self._nodes[source], self._nodes[target], int(PROBE_BYTES))
            except RunFailed:
                continue
        return found

    def _keep(self, iteration: int, runs: str, iteration_s: float, probes_s: Mapping[Pair, float], step: Step) -> None:
        belief = step.belief
        row = {
            "iteration": iteration,
            "schedule": runs,
            "measured_s": iteration_s,
            "never_predicted_s": self._never_s[iteration],
            "probes_s": {named(pair): seconds for pair, seconds in probes_s.items()},
            "alarms": step.learnt.alarms,
            "changes": step.learnt.changes,
            "delay_s": {named(pair): path.delay_s.value for pair, path in belief.paths.items()},
            "rate_bps": {
                named(pair): path.rate_bps.value if math.isfinite(path.rate_bps.value) else None
                for pair, path in belief.paths.items()
            },
            "swapped_to": step.swapped_to and step.swapped_to.label,
            "stays_s": step.stays_s,
            "expected_s": step.expected_s,
        }
        self._rows.append(row)
