"""What a controller does when a link is lost, a job arrives or departs: it asks its policy for routes again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from testbed.errors import BadInput, listed, naming_files
from testbed.plan import routes
from testbed.plan.events import at_work, changed, check_events, lost, scheduled, starts_of
from testbed.plan.moved_weights import require_movable
from testbed.plan.network_state import network_at, planned
from testbed.plan.plan import Case, Continuation, Flow, Framing, JobSchedule, Plan, Route
from testbed.plan.routes import datacenter_of
from testbed.plan.timeline import (
    AS_PLANNED,
    BEGINNING,
    Event,
    FlowsMoved,
    LinkLost,
    Moment,
    ScheduleSwapped,
    StartShifted,
)
from testbed.planning.resolve import framing_of
from testbed.routing.apply import demands, on_routes
from testbed.routing.planner import USUAL_REACH, Planner, Reach
from testbed.routing.policies import PolicyChoice, choose, route


class Controller(NamedTuple):
    """Who chooses routes again."""

    policy: str | None = None
    """None: what has lost its route takes the default one, nothing else moves."""
    reach: Reach = USUAL_REACH


def with_timeline(plan: Plan, events: Iterable[Event]) -> Plan:
    """The plan with these events too; its cases begin without the jobs that arrive later.

    Raises BadInput, naming the option, for events that cannot be.
    """
    timed = replace(plan, events=tuple(sorted((*plan.events, *events), key=lambda event: event.at)))
    check_events(timed, lambda number: (str(timed.events[number]), "event"))
    return timed


def with_continuations(plan: Plan, controller: Controller) -> Plan:
    """The plan in which every case is followed by one for each of its events, on the routes that are chosen then.

    What happens after the same iteration is one event. Where jobs swap schedules, the plan's first case alone begins,
    and its others are what there is to swap to. Raises BadInput for events that leave ranks without a route, and for
    schedules that a training cannot go on with.
    """
    iterations = list(dict.fromkeys(event.at.iteration for event in plan.events if event.between_iterations))
    found: list[Case] = []
    swaps = any(isinstance(event, ScheduleSwapped) for event in plan.events)
    for begins in plan.cases[:1] if swaps else plan.cases:
        training = [begins]
        for after in iterations:
            continues = Continuation(after, controller.policy, *controller.reach)
            training.append(swapped(plan, replace(training[-1], continues=continues)))
        _require_routes(plan, training[-1])
        for number in range(1, len(training)):
            before, after_it = training[number - 1 : number + 1]
            if not str(changed(plan, before, after_it)):
                label = before.jobs[0].choice.label
                raise BadInput.of(ScheduleSwapped.option, "schedule", label, "another one than the training has then")
            # all that has happened by then, the last event behind
            training[number] = replace(after_it, label=_label(plan, before, after_it))
        found += training
    _require_own_labels(found, plan.events)
    return _routed(replace(plan, cases=tuple(found)))


def _routed(plan: Plan) -> Plan:
    """The plan with the routes that are chosen where its cases go on from others: as a run chooses them, which knows
    all cases, so the iterations of each, and the lengths of super-packets, which routes may make shorter."""
    while True:
        cases = list(plan.cases)
        for number, case in enumerate(cases):
            if case.continues is not None:
                cases[number] = replace(case, routes=rerouted(plan, cases[number - 1], case))
        framing = _framing(plan, cases)
        before, plan = plan.framing, replace(plan, cases=tuple(cases), framing=framing)
        if framing == before:
            return plan


def without(plan: Plan, names: Collection[str]) -> Plan:
    """The plan whose switches and links of these names were never there; flows take the default routes that are left.

    Raises BadInput for other names, and where ranks could not reach each other.
    """
    if not names:
        return plan
    nodes = routes.nodes_of_ranks(plan)
    with naming_files({plan.network.name: LinkLost.option}):
        network = planned(plan.network).without(*names)
    left = replace(plan, events=tuple(LinkLost(name, BEGINNING) for name in dict.fromkeys(names)))
    for case in left.cases:
        _require_routes(left, case)
    taken = tuple(network.default_route(nodes[flow.source], nodes[flow.target]) for flow in plan.flows)
    return replace(left, cases=tuple(replace(case, routes=taken) for case in plan.cases))


def swapped(plan: Plan, case: Case) -> Case:
    """The case with the schedules that its jobs have been told to go on with, as other cases of the plan have them.

    Raises BadInput for one that no case has, or whose stages are on other ranks.
    """
    told = scheduled(plan, case)
    return replace(
        case,
        jobs=tuple(
            _swapped(plan, number, chosen, told.get(plan.jobs[number].name)) for number, chosen in enumerate(case.jobs)
        ),
    )


def with_swap(plan: Plan, before: Case, chosen: JobSchedule, taken: tuple[Route, ...], after: int) -> tuple[Plan, Case]:
    """The plan of one job that goes on with the schedule after so many measured iterations, and the case behind the
    one `before` in which it does, on the routes that are `taken` then, one for every flow.
    """
    label, name, at = chosen.choice.label, plan.jobs[0].name, Moment(after)
    nodes, taken_by = routes.nodes_of_ranks(plan), dict[tuple[str, str], set[Route]]()
    for flow, now in zip(plan.flows, taken, strict=True):
        taken_by.setdefault(_ends(flow, nodes), set()).add(now)
    moved = {
        _ends(flow, nodes): now if len(taken_by[_ends(flow, nodes)]) == 1 else AS_PLANNED
        for flow, was, now in zip(plan.flows, before.routes, taken, strict=True)
        if was != now
    }
    happens = [ScheduleSwapped(name, at, label), *(FlowsMoved(name, at, *pair, to) for pair, to in moved.items())]
    from_then = f" from {after}"  # which a schedule that a controller has had made for that is called itself
    case = replace(before, label=label.removesuffix(from_then) + from_then, jobs=(chosen,), routes=taken)
    return _going_on(plan, before, case, happens)


def with_shift(plan: Plan, before: Case, starts_s: Sequence[float], said: str, after: int) -> tuple[Plan, Case]:
    """The plan of jobs that begin at these times after so many measured iterations, one for each job, and the case
    behind the one `before` in which they do; `said` is in its label.
    """
    pairs = zip(plan.jobs, starts_of(plan, before), starts_s, strict=True)
    happens = [StartShifted(job.name, Moment(after), now) for job, was, now in pairs if was != now]
    chosen = " + ".join(dict.fromkeys(chosen.choice.label for chosen in before.jobs))
    case = replace(before, label=f"{chosen}, {said} from {after}", starts_s=tuple(starts_s))
    return _going_on(plan, before, case, happens)


def _going_on(plan: Plan, before: Case, case: Case, happens: Sequence[Event]) -> tuple[Plan, Case]:
    """The plan in which these events have a case go on from the one `before`, and that case."""
    case = replace(case, continues=Continuation(happens[0].at.iteration, None, *USUAL_REACH))
    place = [one.label for one in plan.cases].index(before.label) + 1
    cases = (*plan.cases[:place], case, *plan.cases[place:])
    events = tuple(sorted((*plan.events, *happens), key=lambda event: event.at))
    return replace(plan, events=events, cases=cases), case


def _swapped(plan: Plan, job: int, before: JobSchedule, label: str | None) -> JobSchedule:
    if label is None or label == before.choice.label:
        return before
    known = {case.jobs[job].choice.label: case.jobs[job] for case in plan.cases}
    after = known.get(label)
    if after is None:
        unfit = plan.left_out.get(label)
        expected = f"a schedule that fits: {unfit}" if unfit else f"a schedule of this plan ({listed(known)})"
        raise BadInput.of(ScheduleSwapped.option, "schedule", label, expected)
    workload = plan.jobs[job].workload
    require_movable(workload, before.stage_to_rank, after.stage_to_rank, ScheduleSwapped.option, label)
    return after


def _label(plan: Plan, before: Case, case: Case) -> str:
    """All that has happened by then, the last event behind; of schedules only the one that it goes on with."""
    what = changed(plan, before, case)
    if not what.swapped:
        return f"{before.label} {what}"
    assert case.continues is not None
    schedules = " + ".join(dict.fromkeys(chosen.choice.label for chosen in case.jobs))
    happened = str(what._replace(swapped=(), lost=lost(plan, case)))
    return " ".join(filter(None, (f"{schedules} from {case.continues.after}", happened)))


def _require_own_labels(cases: Sequence[Case], events: Sequence[Event]) -> None:
    """Raises BadInput where a schedule is called what another one is called after an event."""
    labels = [case.label for case in cases]
    for label in labels:
        if labels.count(label) > 1:
            expected = "a label for every case alone: call that schedule otherwise"
            raise BadInput.of(", ".join(map(str, events)), "cases.label", label, expected)


def _require_routes(plan: Plan, case: Case) -> None:
    """Raises BadInput where ranks could not reach each other any more."""
    nodes, left = routes.nodes_of_ranks(plan), network_at(plan, case).routes
    for flow in plan.flows:
        ends = routes.datacenter_of(nodes[flow.source]), routes.datacenter_of(nodes[flow.target])
        if ends not in left:
            expected = f"one without which {ends[0]} still reaches {ends[1]}"
            raise BadInput.of(LinkLost.option, "name", ", ".join(lost(plan, case)), expected)


def policy_of(text: str) -> PolicyChoice:
    """The policy that a controller has. Raises BadInput for one that is not there, or makes whole cases."""
    chosen = choose(text)
    if isinstance(chosen.policy, Planner):
        expected = "a policy that chooses routes alone: beside --lose, --arrive or --depart schedules go on as they are"
        raise BadInput.of("--policy", "policy", text, expected)
    return chosen


def _framing(plan: Plan, cases: Sequence[Case]) -> Framing:
    """With super-packets short enough for the routes that are chosen later, too."""
    nodes = routes.nodes_of_ranks(plan)
    taken = [
        (routes.datacenter_of(nodes[flow.source]), route)
        for case in cases
        for flow, route in zip(plan.flows, case.routes, strict=True)
    ]
    needed = framing_of(plan.network, taken).gso_bytes
    return replace(plan.framing, gso_bytes={at: min(size, needed[at]) for at, size in plan.framing.gso_bytes.items()})


def rerouted(plan: Plan, before: Case, case: Case) -> tuple[Route, ...]:
    """A route for every flow of the plan in a case that goes on from another.

    The policy routes what the jobs at work send. Without one, what is told to move does, what has lost its route takes
    the default one of the network that is left, and nothing else moves. Raises BadInput where no route is left, or for
    a policy that makes whole cases.
    """
    assert case.continues is not None
    network, nodes = network_at(plan, case), routes.nodes_of_ranks(plan)
    told = {
        (event.source, event.target): event.route
        for event in plan.events
        if isinstance(event, FlowsMoved) and event.at == Moment(case.continues.after)
    }
    as_planned = {pair for pair, to in told.items() if to == AS_PLANNED}
    asked = [
        own if (pair := _ends(flow, nodes)) in as_planned else told.get(pair, route)
        for flow, route, own in zip(plan.flows, before.routes, plan.cases[0].routes, strict=True)
    ]
    kept = tuple(
        route if network.down.isdisjoint(route) else network.default_route(nodes[flow.source], nodes[flow.target])
        for flow, route in zip(plan.flows, asked, strict=True)
    )
    moved = replace(case, routes=kept)
    if case.continues.policy is not None:
        chosen = policy_of(case.continues.policy)
        wanted = demands(plan, moved, Reach(case.continues.elephants_from, case.continues.detour))
        moved = on_routes(plan, moved, wanted, route(chosen, wanted.problem).choice.tolist())
    return moved.routes


def _ends(flow: Flow, nodes: Mapping[int, str]) -> tuple[str, str]:
    """The datacenters that it goes between."""
    return datacenter_of(nodes[flow.source]), datacenter_of(nodes[flow.target])


class Moves(NamedTuple):
    """What an event means for the flows that cross links, of the jobs at work after it."""

    flows: int
    flows_new: int
    """Of jobs that have just arrived."""
    flows_moved: int
    """Of the others, those that have another route now."""
    flows_cut: int
    """Of those moved, the ones that crossed what is lost."""


def moves(plan: Plan, before: Case, after: Case) -> Moves:
    """How flows are moved between two cases of a training."""
    working, down = at_work(plan, after), network_at(plan, after).down
    job_of = {rank: number for number in working for rank in plan.jobs[number].mesh.ranks}
    known = at_work(plan, before)
    mine = [
        (job_of[flow.source] in known, old, new)
        for flow, old, new in zip(plan.flows, before.routes, after.routes, strict=True)
        if flow.source in job_of and new
    ]
    moved = [old for there, old, new in mine if there and old != new]
    cut = sum(not down.isdisjoint(old) for old in moved)
    return Moves(len(mine), sum(not there for there, _, _ in mine), len(moved), cut)
