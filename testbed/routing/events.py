"""What a controller does when a link is lost, a job arrives or departs: it asks its policy for routes again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal, NamedTuple

from testbed.errors import BadInput, listed
from testbed.plan import routes
from testbed.plan.events import at_work, changed, check
from testbed.plan.losses import all_lost, left_of
from testbed.plan.plan import Case, Event, Framing, Plan, Route
from testbed.plan.resolve import framing_of
from testbed.routing.apply import demands, on_routes
from testbed.routing.planner import USUAL_REACH, Planner, Reach
from testbed.routing.registry import Chosen, choose, route


class Asked(NamedTuple):
    """What is to happen after so many measured iterations: `--lose`, `--arrive` or `--depart` NAME@AFTER."""

    what: Literal["lose", "arrive", "depart"]
    name: str
    """Of a switch or a link; of a job."""
    after: int

    @property
    def option(self) -> str:
        """As a command has it."""
        return f"--{self.what}"

    def __str__(self) -> str:
        return f"{self.option} {self.name}@{self.after}"


class Controller(NamedTuple):
    """Who chooses routes again."""

    policy: str | None = None
    """None: what has lost its route takes the default one, nothing else moves."""
    reach: Reach = USUAL_REACH


def without_latecomers(plan: Plan, asked: Sequence[Asked]) -> Plan:
    """The plan whose cases begin without the jobs that arrive later. Raises BadInput for events that cannot be."""
    names = [job.name for job in plan.jobs]
    for one in asked:
        if one.what != "lose" and one.name not in names:
            raise BadInput.of(one.option, "job", one.name, f"one of the jobs ({listed(names)})")
        if [(other.what, other.name) for other in asked].count((one.what, one.name)) > 1:
            raise BadInput.of(one.option, "name", one.name, "each name once")
    arrives = {one.name: one.after for one in asked if one.what == "arrive"}
    for one in asked:
        if one.what == "depart" and one.after <= arrives.get(one.name, 0):
            expected = f"more than {arrives[one.name]}, when it arrives" if one.name in arrives else "1 or more"
            raise BadInput.of(one.option, one.name, one.after, expected)
    away = tuple(name for name in names if name in arrives)
    if len(away) == len(names):
        raise BadInput.of("--arrive", "jobs", ", ".join(away), "one job or more that is there from the beginning")
    return replace(plan, cases=tuple(replace(case, away=away) for case in plan.cases))


def with_events(plan: Plan, asked: Sequence[Asked], controller: Controller) -> Plan:
    """The plan in which every case is followed by one for each event, on the routes that the controller chooses then.

    `plan` is one of `without_latecomers`. What happens after the same iteration is one event. Raises BadInput for
    events that cannot be, or leave ranks without a way.
    """
    found: list[Case] = []
    for case in plan.cases:
        training, where = [case], [(str(asked[0]), "case")]
        for after, group in groupby(sorted(asked, key=lambda one: one.after), lambda one: one.after):
            together = list(group)
            training.append(_after(plan, training[-1], together, Event(after, controller.policy, *controller.reach)))
            where.append((", ".join(map(str, together)), "case"))
        check(plan, training, where)
        _require_ways(plan, training[-1])
        for number in range(1, len(training)):
            ways = rerouted(plan, training[number - 1], training[number])
            training[number] = replace(training[number], routes=ways)
        for number in range(1, len(training)):
            before, after = training[number - 1 : number + 1]
            # all that has happened by then, the last event behind
            training[number] = replace(after, label=f"{before.label} {changed(before, after)}")
        found += training
    _require_own_labels(found, asked)
    return replace(plan, cases=tuple(found), framing=_framing(plan, found))


def _require_own_labels(cases: Sequence[Case], asked: Sequence[Asked]) -> None:
    """Raises BadInput where a schedule is called what another one is called after an event."""
    labels = [case.label for case in cases]
    for label in labels:
        if labels.count(label) > 1:
            expected = "a label for every case alone: call that schedule otherwise"
            raise BadInput.of(", ".join(map(str, asked)), "cases.label", label, expected)


def _after(plan: Plan, before: Case, asked: Sequence[Asked], event: Event) -> Case:
    """The case that goes on from `before`, on the same routes."""
    lost = tuple(one.name for one in asked if one.what == "lose")
    arrived = {one.name for one in asked if one.what == "arrive"}
    departed = {one.name for one in asked if one.what == "depart"}
    away = {*before.away, *departed} - arrived
    in_order = tuple(job.name for job in plan.jobs if job.name in away)
    return replace(before, event=event, lost=(*before.lost, *lost), away=in_order)


def _require_ways(plan: Plan, case: Case) -> None:
    """Raises BadInput where ranks could not reach each other any more."""
    nodes, left = routes.nodes_of_ranks(plan), routes.by_datacenters(left_of(plan.network, case.lost).network)
    for flow in plan.flows if case.lost else ():
        ends = routes.datacenter_of(nodes[flow.source]), routes.datacenter_of(nodes[flow.target])
        if ends[0] != ends[1] and ends not in left:
            expected = f"one without which {ends[0]} still reaches {ends[1]}"
            raise BadInput.of("--lose", "name", ", ".join(case.lost), expected)


def policy_of(text: str) -> Chosen:
    """The policy that a controller has. Raises BadInput for one that is not there, or makes whole cases."""
    chosen = choose(text)
    if isinstance(chosen.policy, Planner):
        expected = "a policy that chooses routes alone, with --lose, --arrive and --depart: schedules go on as they are"
        raise BadInput.of("--policy", "policy", text, expected)
    return chosen


def _framing(plan: Plan, cases: Sequence[Case]) -> Framing:
    """With super-packets short enough for the routes that are chosen later, too."""
    nodes = routes.nodes_of_ranks(plan)
    taken = [
        (routes.datacenter_of(nodes[flow.source]), way)
        for case in cases
        for flow, way in zip(plan.flows, case.routes, strict=True)
    ]
    needed = framing_of(plan.network, taken).gso_bytes
    return replace(plan.framing, gso_bytes={at: min(size, needed[at]) for at, size in plan.framing.gso_bytes.items()})


def rerouted(plan: Plan, before: Case, case: Case) -> tuple[Route, ...]:
    """A route for every flow of the plan in a case that goes on from another, in the whole network's numbers.

    The policy routes what the jobs at work send. Without one, what has lost its route takes the default one of the
    network that is left, and nothing else moves. Raises BadInput where there is no way left, or for a policy that makes
    whole cases.
    """
    assert case.event is not None
    left = left_of(plan.network, case.lost)
    nodes, between = routes.nodes_of_ranks(plan), routes.Between(left.network)
    ways = []
    for flow, whole in zip(plan.flows, before.routes, strict=True):
        way = left.of_whole(whole)
        ways.append(between(nodes[flow.source], nodes[flow.target]) if way is None else way)
    smaller, moved = replace(plan, network=left.network, cases=()), replace(case, routes=tuple(ways), lost=())
    if case.event.policy is not None:
        chosen = policy_of(case.event.policy)
        wanted = demands(smaller, moved, Reach(case.event.elephants_from, case.event.detour))
        moved = on_routes(smaller, moved, wanted, route(chosen, wanted.problem).choice.tolist())
    return tuple(map(left.in_whole, moved.routes))


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
    working, lost = at_work(plan, after), all_lost(plan.network, after.lost)
    job_of = {rank: number for number in working for rank in plan.jobs[number].mesh.ranks}
    known = at_work(plan, before)
    mine = [
        (job_of[flow.source] in known, old, new)
        for flow, old, new in zip(plan.flows, before.routes, after.routes, strict=True)
        if flow.source in job_of and new
    ]
    moved = [old for there, old, new in mine if there and old != new]
    cut = sum(not lost.isdisjoint(old) for old in moved)
    return Moves(len(mine), sum(not there for there, _, _ in mine), len(moved), cut)
