"""A job that adapts in a lab, or several: what is seen of their iterations, and what their controller decides."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from testbed.adaptation.adaptable_job import adaptable_job
from testbed.adaptation.adapting import Step
from testbed.adaptation.adapting_plan import OPTION
from testbed.adaptation.candidate import JobSetting, Prospect
from testbed.adaptation.controller import choose
from testbed.adaptation.estimates import Belief, named
from testbed.adaptation.in_lab import LabSubject, OneJob, SeveralJobs
from testbed.adaptation.jobs_in_rounds import jobs_in_rounds
from testbed.adaptation.looks import Look
from testbed.adaptation.may_change import MayChange
from testbed.adaptation.oracle import best_sequence
from testbed.adaptation.sightings import PROBE_BYTES, Path, TrainTimes
from testbed.adaptation.swap_costs import kind_of
from testbed.errors import RunFailed
from testbed.lab.trains import Arrivals
from testbed.model.lower import Load, shared_by
from testbed.plan import network_state
from testbed.plan.plan import Adaptation, Case, Plan, Route
from testbed.plan.timeline import LinkEvent
from testbed.plan.traffic import PlannedTraffic
from testbed.planning.drawn_iterations import phase_of, rank_changes, varies
from testbed.planning.prediction import parts_of, predict_training
from testbed.planning.training_prediction import TrainingPrediction
from testbed.session.running import GoesOn, Shifts
from testbed.session.timers import TimedAction
from testbed.spec.choice import with_ending
from testbed.trace.predictions import predicted_times_s
from testbed.trace.tables import Trace

LOOKS_AT_S = 1e-3
"""Into an iteration a train leaves that goes beside it: behind whatever changes as it begins."""


class SentTrain(Protocol):
    """On its way."""

    def arrived(self, within_s: float = 0.0) -> Arrivals | None:
        """When it came, or None of less than half of it, once all has come or so long has passed."""


class ProbedNetwork(Protocol):
    """A network on which a job may send a packet of its own while nothing else is on its way: a lab."""

    def probe_s(self, source: str, target: str, frame_bytes: int) -> float:
        """Seconds that it takes from one node to another. Raises RunFailed where none arrives."""

    def send_train(self, source: str, target: str, route: Route, packets: int, frame_bytes: int) -> SentTrain:
        """Send so many packets back to back along a route, whatever others take. Raises RunFailed."""

    def stamp_packets(self) -> None:
        """Trains will be sent from now on: have it know when packets come."""


def whole_route(plan: Plan, path: Path, source: str) -> Route:
    """Along a path from a node, its network card first if it has one."""
    return *network_state.planned(plan.network).card_routes.get(source, ()), *path.route


def stored_s(plan: Plan, path: Path, source: str) -> float:
    """How much longer a packet of a probe's size takes from a node along a path than all delays and its time on the
    slowest wire, which is what a job has of a path: every link stores it before it goes on. As links are planned."""
    network = network_state.planned(plan.network)
    wires_s = [8 * PROBE_BYTES / network.everything[index].rate_bps for index in whole_route(plan, path, source)]
    return sum(wires_s) - max(wires_s, default=0.0)


class AdaptingLab:
    """Asks a plan's controller after every measured iteration, and keeps what came of that."""

    def __init__(self, plan: Plan, network: ProbedNetwork) -> None:
        """Raises BadInput for a plan that no controller can adapt."""
        assert plan.adaptation is not None
        asked = plan.adaptation
        self._subject, self._network = _subject(plan, asked), network
        controller = choose(asked.controller, option=OPTION, content=asked.content)
        self._adapting = self._subject.adapting(controller.begin(), asked.swap_s)
        self._begun = self._adapting.running
        self._plan, self._asked = plan, asked
        begun = self._training(self._begun)
        self._predicted: dict[JobSetting, list[Trace]] = {self._begun.setting: self._parts(self._begun, begun)}
        """By setting, what is predicted with the first candidate that had it: messages are the same with every one."""
        self._loads = {number: begun.loads_of(number) for number in self._measured}
        """Of every measured iteration, what jobs put on which network."""
        self._never_s = self._times_s(self._begun, begun).tolist()
        self._planned_s = self._believed_s(self._subject.belief)
        self._happens = _happenings(plan)
        self._rows: list[dict[str, Any]] = []
        self._swap: tuple[JobSetting, JobSetting] | None = None
        """That which was decided last."""
        self._look: Look | None = None
        """Beside the iteration that is under way, or behind it ..."""
        self._trains: dict[Path, SentTrain] = {}
        """... and those of its trains that have left."""
        if any(path not in self._begun.setting.paths for path in self._subject.belief.paths):
            network.stamp_packets()
        self._carried = [0.0] * len(network_state.planned(plan.network).everything)
        """By direction, wire bytes of trains since they were told of."""

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
        return self._subject.cases

    def after(self, iteration: int, ended: Sequence[Trace], *, over: bool) -> GoesOn | Shifts | None:
        """See session.running.RunningController."""
        running, begun_s = self._adapting.running, time.monotonic()
        probes_s = self._probes_s(running.setting)
        probing_s = time.monotonic() - begun_s
        if running.setting not in self._predicted:
            self._predicted[running.setting] = self._parts(running, self._training(running))
        seen = self._subject.seen(ended, self._predicted[running.setting], running, probes_s)
        look, (trains, look_s) = self._look, self._looked()
        step = self._adapting.after(iteration - 1, seen, trains, look_s)
        self._look = None if over else step.look
        step = step._replace(swapped_to=None, expected_s=step.stays_s) if over else step
        self._keep(iteration - 1, running, seen.iteration_s, probes_s, step)
        looked = {named(path): path in trains for path in look.paths} if look else {}
        self._rows[-1] |= {"probing_s": probing_s, "looked_at": looked, "look_s": look_s}
        self._rows[-1]["look_bytes"] = look.wire_bytes if look else 0.0
        if step.swapped_to is None:
            return None
        if not isinstance(self._subject, OneJob):
            return Shifts(step.swapped_to.setting.starts_s, step.swapped_to.label)
        scheduled = self._subject.scheduled(step.swapped_to, with_ending(step.swapped_to.label, f" from {iteration}"))
        return GoesOn(scheduled, self._subject.job.routes_in(step.swapped_to.setting))

    def swapped(self, seconds: float) -> None:
        """See session.running.RunningController."""
        self._rows[-1]["swap_took_s"] = seconds
        assert self._swap is not None
        self._adapting.swap_costs.learn(*self._swap, seconds)

    def goes_on(self, iteration: int, idle_s: float) -> None:
        """See session.running.RunningController."""
        self._rows[iteration - 1]["idle_s"] = idle_s

    def timed(self, iteration: int) -> list[TimedAction]:
        """See session.running.RunningController."""
        return [TimedAction(LOOKS_AT_S, self._send)] if self._look is not None and self._look.beside else []

    def carried(self) -> list[PlannedTraffic]:
        """See session.running.RunningController."""
        carried, self._carried = self._carried, [0.0] * len(self._carried)
        return [PlannedTraffic(size, 0) for size in carried]

    def _send(self) -> None:
        """Have all trains of the look leave."""
        assert self._look is not None
        for path in self._look.paths:
            ends, packets = self._subject.nodes_of(path), self._look.packets
            self._trains[path] = self._network.send_train(*ends, path.route, packets, int(PROBE_BYTES))

    def _looked(self) -> tuple[dict[Path, TrainTimes], float]:
        """What the look has shown that was due, and how long the job has waited for it."""
        look, begun_s = self._look, time.monotonic()
        if look is None:
            return {}, 0.0
        if not look.beside:
            self._send()
        until_s, found = begun_s + (0.0 if look.beside else look.waits_s), dict[Path, TrainTimes]()
        for path, train in self._trains.items():
            came = train.arrived(max(0.0, until_s - time.monotonic()))
            if came is not None:
                source, _ = self._subject.nodes_of(path)
                more_s = stored_s(self._plan, path, source)
                first_s, last_s = (max(0.0, seconds - more_s) for seconds in (came.first_s, came.last_s))
                found[path] = TrainTimes(first_s, last_s, look.wire_bytes, came.sent_s)
                for index in whole_route(self._plan, path, source):
                    self._carried[index] += look.wire_bytes
        self._trains = {}
        return found, 0.0 if look.beside else time.monotonic() - begun_s

    @property
    def _measured(self) -> range:
        """The rounds of the training that count."""
        return phase_of(self._plan, self._plan.cases[0]).measured

    def _training(self, runs: Prospect) -> TrainingPrediction:
        """What is predicted with a candidate and the plan's events, which may not be over in its shorter iterations."""
        return predict_training(self._plan, self._subject.case_with(runs), strict=False)

    def _parts(self, runs: Prospect, predicted: TrainingPrediction) -> list[Trace]:
        """Of every job, from its own start."""
        return parts_of(self._plan, self._subject.case_with(runs), predicted.trace)

    def _times_s(self, runs: Prospect, predicted: TrainingPrediction) -> NDArray[np.float64]:
        """Per measured iteration; of several jobs the mean."""
        parts = self._parts(runs, predicted)
        found: NDArray[np.float64] = np.mean([predicted_times_s(part, self._measured) for part in parts], axis=0)
        return found

    def _states(self) -> list[Sequence[Load]]:
        """What jobs put on which network, each time that something else happens to it; slots as drawn are not that."""
        loads = list(self._loads.values())[: len(self._rows)]
        if not varies(self._plan, self._plan.cases[0]):
            return list({id(each): each for each in loads}.values())
        typical = {shared_by(each[0].problem): [load._replace(slots_s=None) for load in each] for each in loads}
        return list(typical.values())

    def _oracle(self) -> list[dict[str, Any]]:
        """Per iteration, schedule and time of who knows all events and may run whatever the controller could: as
        predicted, and with swaps that cost what they took, or are taken to cost, though they are in no iteration.
        """
        if not self._rows:
            return []
        known = [made for loads in self._states() for made in self._subject.made_for(loads)]
        every = {each.candidate: each for each in (self._begun, *self._adapting.candidates, *known)}.values()
        seconds = np.array([self._times_s(each, self._training(each))[: len(self._rows)] for each in every]).T
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
        for path, ends in self._subject.probed(setting).items():
            try:
                took_s = self._network.probe_s(*ends, int(PROBE_BYTES))
                found[path] = max(0.0, took_s - stored_s(self._plan, path, ends[0]))
            except RunFailed:
                continue
        return found

    def _believed_s(self, belief: Belief) -> dict[str, float]:
        """What the longest message takes from one datacenter to another, and one action of each kind on a rank."""
        size = self._subject.message_bytes
        found = {named(which): path.crossing_s(size) for which, path in belief.paths.items()}
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


def _subject(plan: Plan, asked: Adaptation) -> LabSubject:
    """Raises BadInput for what no controller can adapt."""
    if asked.starts:
        return SeveralJobs(jobs_in_rounds(plan, asked.starts))
    return OneJob(adaptable_job(plan, asked.choices, MayChange(asked.microbatches, asked.routes, asked.stages)))


def _happenings(plan: Plan) -> dict[int, list[str]]:
    """By measured iteration, what the plan has happen in it, each in the words of whoever wrote it."""
    warmup = plan.jobs[0].workload.warmup
    said = [(event.at.iteration, event.said) for event in plan.events if isinstance(event, LinkEvent)]
    said += [(change.round - warmup, change.said) for change in rank_changes(plan, plan.cases[0])]
    return {number: list(dict.fromkeys(what for when, what in said if when == number)) for number, _ in sorted(said)}
