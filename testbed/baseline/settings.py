"""Settings (`--set`) laid over a plan that is kept: over the topology and workloads that would lead to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from testbed.errors import BadInput, listed
from testbed.full_scale import similitude
from testbed.full_scale.similitude import Scales
from testbed.goodput.recovering_plan import require_replicas_left
from testbed.plan.network_state import planned
from testbed.plan.plan import Plan
from testbed.plan.routes import default_routes
from testbed.planning.prediction import freely
from testbed.planning.recoverable import require_recoverable
from testbed.planning.resolve import make_plan, overrides_of, with_clock, with_traffic_beside
from testbed.planning.schedules import choices_in_cases, choose, make, with_selected
from testbed.schedule.schedule_file import RecordedSchedule
from testbed.spec.document import override, validate
from testbed.spec.quantity import SI_UNITS, WITH_UNITS
from testbed.spec.topology import Direction, Topology
from testbed.spec.workload import DERIVED, Workload

_PARTS_OF_DELAY = re.compile(r"links\.[0-9]+\.(.+\.)?(fibre|equipment_delay)")


def with_settings(plan: Plan, settings: Sequence[str], source: str) -> Plan:
    """The plan with its schedules, as it would be with these settings. Without any it is as it was.

    Raises BadInput naming `source`, also for a plan in which more was decided than topology and workloads say.
    """
    if not settings:
        return plan
    if decided := decided_in(plan):
        raise BadInput.of(source, "plan", plan.cases[0].label, f"no --set: {listed(decided)}")
    return made_anew(plan, settings, source)


def made_anew(plan: Plan, settings: Sequence[str], source: str) -> Plan:
    """A plan that topology and workloads lead to, with its schedules: nodes, flows and framing as they are found today.

    Routes that are not the default ones of today stay, as if the topology had named them; so do background traffic,
    how iterations begin, checkpoints and failures. Raises BadInput as `with_settings`.
    """
    of_workloads, of_topology = overrides_of(settings)
    for key in filter(_PARTS_OF_DELAY.fullmatch, of_topology):
        raise BadInput.of(source, f"--set topology.{key}", of_topology[key], "delay: a plan has all of it in one value")
    topology = validate(Topology, override(_written(_topology(plan, source)), of_topology, source), source)
    workloads = [
        validate(Workload, override(_workload_document(plan, job), of_workloads, source), source)
        for job in range(len(plan.jobs))
    ]
    fresh = with_traffic_beside(with_clock(make_plan(topology, *workloads), plan.clock), plan.background, source)
    selected = []
    for job in range(len(plan.jobs)):
        choices, kept = choose(fresh, job=job), _schedules(plan, job)
        known = {choice.label: kept[choice.label] for choice in choices if choice.label in kept}
        selected.append(make(fresh, choices, known, job=job, source=source, strict=True))
    made = replace(with_selected(fresh, selected), recovery=plan.recovery)
    require_recoverable(made, source, "recovery")
    require_replicas_left(made, source, "recovery")
    return freely(made) if plan.rounds == "free" else made


def decided_in(plan: Plan) -> list[str]:
    """What in a plan does not follow from its files; [] where all does."""
    cases = plan.cases
    decided = {
        "it has events": bool(plan.events),
        "it has a controller": plan.adaptation is not None,
        "a policy chose its routes": plan.elephants_from is not None,
        "its routes are kept by ports": plan.enforcement != "rules",
        "its jobs go on with other cases": any(case.continues for case in cases),
        "its jobs begin at times of their own": any(case.starts_s for case in cases),
        "its jobs train by themselves, too": any(case.alone for case in cases),
    }
    return [what for what, true in decided.items() if true]


def _schedules(plan: Plan, job: int) -> dict[str, RecordedSchedule]:
    """By label, what the plan has of a job's schedules."""
    chosen = [case.jobs[job] for case in plan.cases]
    return {
        schedule.choice.label: RecordedSchedule(schedule.rows, schedule.proof)
        for schedule in chosen
        if schedule.rows is not None
    }


def _written(spec: Topology | Workload) -> dict[str, Any]:
    """As a file would have it."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True, context=WITH_UNITS)


def _workload_document(plan: Plan, job: int) -> dict[str, Any]:
    """A job's workload as a file would have it, with the schedules that the cases have."""
    workload = plan.jobs[job].workload
    document = _written(workload.model_copy(update={"schedules": choices_in_cases(plan, job)}))
    if workload.full_scale is None:
        return {"pacing": "none"} | document
    document["data_parallel"].pop("parameters", None)
    return {name: value for name, value in document.items() if name not in DERIVED}


def _topology(plan: Plan, source: str) -> Topology:
    """A topology with the plan's nodes, directions and routes; what a delay was made of (fibre, equipment) is lost."""
    network = plan.network
    at = similitude.common_scales([job.workload for job in plan.jobs], plan.host_costs.gloo_bytes)
    directions, cards = _at_full_scale(planned(network).links, at), _at_full_scale(network.cards, at)
    inside = {card.target: {"inside": {"delay": card.delay_s, "rate": card.rate_bps}} for card in cards}
    nodes = Counter(node.datacenter for node in network.nodes)
    document: dict[str, Any] = {
        "name": network.name,
        "datacenters": {name: {"nodes": count, **inside.get(name, {})} for name, count in nodes.items()}
        | {name: {"nodes": 0} for name in network.switches},
        "links": [_link(*pair) for pair in zip(directions[::2], directions[1::2], strict=True)],
    }
    plain = default_routes(validate(Topology, document, source, SI_UNITS))
    default = {(route.source, route.target): route.route for route in plain}
    document["routes"] = [
        {"from": given.source, "to": given.target, "via": [directions[index].link for index in given.route]}
        for given in network.routes
        if default[given.source, given.target] != given.route
    ]
    return validate(Topology, document, source, SI_UNITS)


def _at_full_scale(directions: Iterable[Direction], at: Scales | None) -> list[Direction]:
    """As the topology has them."""
    return [direction if at is None else similitude.full_scale_of(direction, at) for direction in directions]


def _link(forward: Direction, reverse: Direction) -> dict[str, Any]:
    """An entry of `links`: what forward has is the link's, and `reverse` says where it differs.

    So a setting of the link is for both, but for what only reverse says.
    """
    ends = [forward.source, forward.target]
    whole, back = _values(forward), _values(reverse)
    named = {} if forward.link == "--".join(ends) else {"name": forward.link}
    # a queue that is derived, 0, cannot be said: then the link says nothing, and each side what it has
    own = {"queue": whole.pop("queue")} if "queue" in whole and "queue" not in back else {}
    zero = {name: 0.0 for name in ("jitter", "loss") if name in whole}
    differs = {name: value for name, value in (zero | back).items() if whole.get(name) != value}
    return {"between": ends, **named, **whole, "forward": own, "reverse": differs}


def _values(direction: Direction) -> dict[str, float]:
    """What a file says of a direction: delay and rate, and what else is not 0."""
    always = {"delay": direction.delay_s, "rate": direction.rate_bps}
    more = {"queue": direction.queue_bytes, "jitter": direction.jitter_s, "loss": direction.loss}
    return always | {name: value for name, value in more.items() if value}
