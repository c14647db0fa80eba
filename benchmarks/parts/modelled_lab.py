"""A lab that is the event model: jobs whose starts adapt see what is predicted of them, iteration after iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from testbed.lab.trains import Arrivals
from testbed.pipeline.link import crossing_s
from testbed.plan.network_state import link_costs, network_at
from testbed.plan.plan import Plan, Route
from testbed.plan.timeline import Moment
from testbed.planning.drawn_iterations import phase_of
from testbed.planning.prediction import parts_of, predict_training
from testbed.session.adapting_lab import AdaptingLab
from testbed.session.running import Shifts
from testbed.trace.predictions import prediction_of

_LATEST_S = 1e6
"""Behind all that may happen in an iteration."""


class _ModelledTrain(NamedTuple):
    """Packets that have a plan's links for themselves."""

    came: Arrivals

    def arrived(self, within_s: float = 0.0) -> Arrivals | None:
        """See session.adapting_lab.SentTrain: nothing has to be waited for."""
        return self.came


class _ModelledNetwork:
    """Packets that are alone on a plan's network, behind the iteration of a number."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self.iteration = plan, 0

    def probe_s(self, source: str, target: str, frame_bytes: int) -> float:
        """See session.adapting_lab.ProbedNetwork."""
        (case, *_), handover_s = self._plan.cases, self._plan.host_costs.handover_s
        network = network_at(self._plan, case, Moment(self.iteration, _LATEST_S))
        costs = link_costs(network)
        return crossing_s([costs[index] for index in network.default_route(source, target)], frame_bytes) + handover_s

    def send_train(self, source: str, target: str, route: Route, packets: int, frame_bytes: int) -> _ModelledTrain:
        """See session.adapting_lab.ProbedNetwork."""
        costs = link_costs(network_at(self._plan, self._plan.cases[0], Moment(self.iteration, _LATEST_S)))
        links, handover_s = [costs[index] for index in route], self._plan.host_costs.handover_s
        first_s, last_s = (crossing_s(links, n * frame_bytes) + handover_s for n in (1, packets))
        return _ModelledTrain(Arrivals(first_s, last_s, 0.0))

    def stamp_packets(self) -> None:
        """The model knows when they come."""


def adapted(plan: Plan) -> dict[str, Any]:
    """`adaptation` of comparison.json, of a plan of several jobs that is trained in the model; shifts take no time."""
    network, case = _ModelledNetwork(plan), plan.cases[0]
    lab, rounds = AdaptingLab(plan, network), phase_of(plan, plan.cases[0]).measured
    for number, at in enumerate(rounds):
        network.iteration = number
        parts = parts_of(plan, case, predict_training(plan, case).trace)
        chosen = lab.after(number + 1, [prediction_of(part, at) for part in parts], over=at == rounds[-1])
        if isinstance(chosen, Shifts):
            case = replace(case, starts_s=chosen.starts_s)
            lab.swapped(0.0)
    return lab.document
