"""A job that adapts in a lab: what it sees of its own iterations, and what its controller decides by that."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.adaptation.adaptable_job import adaptable_job, planned_belief
from testbed.adaptation.adapting_plan import OPTION
from testbed.adaptation.candidate import JobSetting, Prospect
from testbed.adaptation.controller import Adapting, Step, choose
from testbed.adaptation.estimates import Belief, named
from testbed.adaptation.may_change import MayChange
from testbed.adaptation.oracle import best_sequence
from testbed.adaptation.sightings import PROBE_BYTES, Path, sighting, with_wire_bytes
from testbed.adaptation.swap_costs import kind_of
from testbed.errors import RunFailed
from testbed.plan.plan import Case, JobSchedule, Plan
from testbed.plan.timeline import LinkEvent
from testbed.planning.drawn_iterations import phase_of, rank_changes
from testbed.planning.prediction import parts_of, predict_training
from testbed.session.running import GoesOn
from testbed.spec.choice import with_ending
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
        asked = plan.adaptation
        self._job, self._network = (
            adaptable_job(plan, asked.choices, MayChange(asked.microbatches, asked.routes, asked.stages)),
            network,
        )
        controller, begins = choose(asked.controller, option=OPTION, content=asked.content), plan.cases[0].jobs[0]
        self._adapting = Adapting(self._job, controller.begin(), asked.swap_s, begins.choice.label)
        self._begun = self._adapting.running
        self._plan, self._asked = plan, asked
        self._message_bytes = max(self._job.planned.message_bytes)
        self._predicted: dict[JobSetting, Trace] = {self._begun.setting: self._training(self._begun)}
        """By setting, what is predicted with the first candidate that had it: messages are the same with every one."""
        self._never_s = self._times_s(self._predicted[self._begun.setting]).tolist()
        self._planned_s = self._believed_s(planned_belief(self._job))
        self._happens = _happenings(plan)
        self._rows: list[dict[str, Any]] = []
        self._swap: tuple[JobSetting, JobSetting] | None = None
        """That which was decided last."""

    @property
    def document(self) -> dict[str, Any]:
        """`adaptation` in comparison.json."""
        rows = [row | known for row, known in zip(self._rows, self._oracle(), strict=True)]
        costs = self._adapting.swap_costs
        asked = {"controller": self._asked.controller, "swap_s": self._asked.swap_s}
        beyond_s = {kind: costs.beyond_s(kind) for kind in costs.known}
        return asked | {"swap_beyond_s": beyond_s, "planned_s": self._planned_s, "iterations": rows}

    @property
    def cases(self) -> list[Case]:
        """See session.running.RunningController."""
        begins, job = self._plan.cases[0], self._job
        return [
            replace(begins, jobs=(job.scheduled(recipe.choice, setting),), routes=job.routes_in(setting))
            for setting, recipe in job.settings.items()
        ]

    def after(self, iteration: int, ended: Trace, *, over: bool) -> GoesOn | None:
        """See session.running.RunningController."""
        running, begun_s = self._adapting.running, time.monotonic()
        probes_s = self._probes_s(running.setting)
        probing_s = time.monotonic() - begun_s
        if running.setting not in self._predicted:
            self._predicted[running.setting] = self._training(running)
        seen = sighting(with_wire_bytes(ended, self._predicted[running.setting]), self._job.ranks, probes_s)
        step = self._adapting.after(iteration - 1, seen)
        step = step._replace(swapped_to=None, expected_s=step.stays_s) if over else step
        self._keep(iteration - 1, running, float(ended.makespans()[0]), probes_s, step)
        self._rows[-1]["probing_s"] = probing_s
        if step.swapped_to is None:
            return None
        scheduled = self._scheduled(step.swapped_to, with_ending(step.swapped_to.label, f" of {iteration}"))
        return GoesOn(scheduled, self._job.routes_in(step.swapped_to.setting))

    def swapped(self, seconds: float) -> None:
        """See session.running.RunningController."""
        self._rows[-1]["swap_took_s"] = seconds
        assert self._swap is not None
        self._adapting.swap_costs.learn(*self._swap, seconds)

    def goes_on(self, iteration: int, idle_s: float) -> None:
        """See session.running.RunningController."""
        self._rows[iteration - 1]["idle_s"] = idle_s

    def _scheduled(self, prospect: Prospect, label: str) -> JobSchedule:
        """What the job does in a case with a candidate, which the plan calls so."""
        recipe = self._job.labelled(prospect.label)
        bare = self._job.scheduled(recipe.choice.model_copy(update={"label": label}), prospect.setting)
        return replace(bare, rows=prospect.schedule.rows)

    def _training(self, runs: Prospect) -> Trace:
        """What is predicted with a candidate and the plan's events."""
        case = self._plan.cases[0]
        routes = self._job.routes_in(runs.setting)
        running = replace(case, jobs=(self._scheduled(runs, runs.label),), routes=routes)
        (part,) = parts_of(self._plan, running, predict_training(self._plan, running).trace)
        return part

    def _times_s(self, predicted: Trace) -> NDArray[np.float64]:
        """Per measured iteration."""
        return predicted_times_s(predicted, phase_of(self._plan, self._plan.cases[0]).measured)

    def _oracle(self) -> list[dict[str, Any]]:
        """Per iteration, schedule and time of who knows all events and may run whatever the controller could: as
        predicted, and with swaps that cost what they took, or are taken to cost, though they are in no iteration.
        """
        if not self._rows:
            return []
        every = {each.candidate: each for each in (self._begun, *self._adapting.candidates)}.values()
        trained = [self._training(each) for each in every]
        seconds = np.array([self._times_s(each)[: len(self._rows)] for each in trained]).T
        names = [each.label for each in every]
        swaps_s = self._adapting.swap_costs.matrix([each.candidate for each in every])
        chosen = best_sequence(seconds, [swaps_s] * len(seconds))
        return [
            {
                "oracle": names[which],
                "oracle_swaps": which != before,
                "oracle_swap_s": float(swaps_s[before, which]),
                "oracle_predicted_s": float(seconds[place, which]),
            }
            for place, (before, which) in enumerate(pairwise([0, *chosen]))
        ]

    def _probes_s(self, setting: JobSetting) -> dict[Path, float]:
        """Of the paths in use. A link that is down says nothing."""
        found = {}
        problem = self._job.settings[setting].problem
        ends = self._job.pairs(problem)
        for path in setting.paths:
            try:
                found[path] = self._network.probe_s(*self._job.nodes_of(problem, ends[path.pair]), int(PROBE_BYTES))
            except RunFailed:
                continue
        return found

    def _believed_s(self, belief: Belief) -> dict[str, float]:
        """What the longest message takes from one datacenter to another, and one action of each kind on a rank."""
        found = {named(which): path.crossing_s(self._message_bytes) for which, path in belief.paths.items()}
        for (rank, _), slot in belief.slots.items():
            name = f"rank {rank}"
            found[name] = found.get(name, 0.0) + slot.value
        return found

    def _keep(
        self, iteration: int, runs: Prospect, iteration_s: float, probes_s: Mapping[Path, float], step: Step
    ) -> None:
        belief, costs = step.belief, self._adapting.swap_costs
        self._swap = None if step.swapped_to is None else (runs.setting, step.swapped_to.setting)
        row = {
            "iteration": iteration,
            "schedule": runs.label,
            "happens": self._happens.get(iteration, []),
            "measured_s": iteration_s,
            "never_predicted_s": self._never_s[iteration],
            "probes_s": {named(path): seconds for path, seconds in probes_s.items()},
            "alarms": step.learnt.alarms,
            "changes": step.learnt.changes,
            "delay_s": {named(which): path.delay_s.value for which, path in belief.paths.items()},
            "rate_bps": {
                named(which): path.rate_bps.value if math.isfinite(path.rate_bps.value) else None
                for which, path in belief.paths.items()
            },
            "believed_s": self._believed_s(belief),
            "swapped_to": step.swapped_to and step.swapped_to.label,
            "swap": self._swap and kind_of(*self._swap),
            "swap_sends_s": self._swap and costs.sends_s(*self._swap),
            "swap_believed_s": self._swap and step.swap_s,
            "swap_took_s": None,
            "idle_s": None,
            "stays_s": step.stays_s,
            "expected_s": step.expected_s,
        }
        self._rows.append(row)


def _happenings(plan: Plan) -> dict[int, list[str]]:
    """By measured iteration, what the plan has happen in it, each in the words of whoever wrote it."""
    warmup = plan.jobs[0].workload.warmup
    said = [(event.at.iteration, event.said) for event in plan.events if isinstance(event, LinkEvent)]
    said += [(change.round - warmup, change.said) for change in rank_changes(plan, plan.cases[0])]
    return {number: list(dict.fromkeys(what for when, what in said if when == number)) for number, _ in sorted(said)}
