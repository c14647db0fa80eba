"""What links are at a moment: as planned, after events, within an iteration; and that nobody else reads directions."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_plan import planned as planned_for

from testbed.errors import BadInput
from testbed.pipeline.link import LinkChange
from testbed.plan.costs import problem_of_case
from testbed.plan.network_state import NetworkState, link_changes, link_costs, network_at, planned
from testbed.plan.plan import Continuation, Plan
from testbed.plan.timeline import EVENT_KINDS, Event, LinkLost, Moment
from testbed.plan.traffic import planned_traffic
from testbed.planning import file

ROOT = Path(__file__).parents[2]
READS = "testbed/plan/network_state.py"


@dataclass(frozen=True)
class RateStep(Event):
    """A kind that this version has not: a link has another rate from then on."""

    kind = "rate-step"

    rate_bps: float

    def on_network(self, network: NetworkState) -> NetworkState:
        numbers = network.directions_of(self.name)
        links = [one._replace(rate_bps=self.rate_bps) if n in numbers else one for n, one in enumerate(network.links)]
        return replace(network, links=tuple(links))


@dataclass(frozen=True)
class PlayedRateStep(RateStep):
    """The same, as if model and lab could play it."""

    between_iterations = True
    inside_iterations = True


@pytest.fixture
def plan() -> Plan:
    return planned_for()


def test_what_a_plan_says_is_what_is_until_something_happens(plan: Plan) -> None:
    (first, *_), whole = plan.cases, planned(plan.network)
    assert network_at(plan, first) == whole
    assert whole.everything == plan.network.directions + plan.network.cards
    assert problem_of_case(plan, first).links == link_costs(whole)
    name = whole.links[0].link
    lossy = replace(plan, events=(LinkLost(name, Moment(3)),))
    assert network_at(lossy, first) == whole
    assert network_at(lossy, first, Moment(2, 0.5)) == whole
    for later in (Moment(3), Moment(3, 0.5), Moment(4)):
        assert network_at(lossy, first, later).down == {0, 1}
    goes_on = replace(first, continues=Continuation(3, None, 0.0, 1))
    assert network_at(lossy, goes_on) == whole.without(name)
    assert network_at(lossy, goes_on).routes.keys() == {(site, site) for site in whole.datacenters}
    assert network_at(lossy, first, Moment(2)).later == ()


def test_a_job_by_itself_trains_without_events(plan: Plan) -> None:
    lossy = replace(plan, events=(LinkLost(planned(plan.network).links[0].link, Moment(3)),))
    by_itself = replace(plan.cases[0], alone=plan.jobs[0].name)
    assert network_at(lossy, by_itself, Moment(9)) == planned(plan.network)


def test_links_are_piecewise_within_an_iteration(plan: Plan) -> None:
    """What a new kind needs: a class. Costs and planned bytes are those of the moment; the model's links are steady."""
    whole = planned(plan.network)
    name, case = whole.links[0].link, plan.cases[0]
    steps = (RateStep(name, Moment(2), 2e6), RateStep(name, Moment(2, 0.5), 3e6), RateStep(name, Moment(2, 0.75), 3e6))
    changing = replace(plan, events=steps)
    now = network_at(changing, case, Moment(2))
    assert {one.rate_bps for one in now.links} == {2e6}
    assert [(piece.from_s, piece.network.links[0].rate_bps) for piece in now.later] == [(0.5, 3e6)]
    (later,) = network_at(changing, case, Moment(2, 0.25)).later
    assert later.from_s == 0.25
    assert network_at(changing, case, Moment(2, 0.5)).later == ()
    goes_on = replace(case, continues=Continuation(3, None, 0.0, 1))
    costs = problem_of_case(changing, goes_on).links
    assert [one.seconds_per_byte for one in costs] == [8 / 3e6, 8 / 3e6]  # of the case, not of the plan
    assert planned_traffic(changing, goes_on) == planned_traffic(plan, case)
    inside = replace(case, continues=Continuation(2, None, 0.0, 1))
    assert problem_of_case(changing, inside).links == link_costs(now), "schedules are made for what is there first"
    assert link_changes(now) == tuple(LinkChange(0.5, number, 0.0102, 8 / 3e6) for number in (0, 1))


@pytest.mark.parametrize(
    ("kind", "at", "expected"),
    [
        (RateStep, {"iteration": 3}, r"events.0.kind: got 'rate-step', expected a kind that model and lab can play"),
        (PlayedRateStep, {"iteration": 10, "seconds": 0.5}, r"events.0.at.iteration: got 10, expected 0 to 9"),
        (PlayedRateStep, {"iteration": 3, "seconds": -1}, r"events.0.at.seconds: got -1.0, expected 0 s or more"),
        (LinkLost, {"iteration": 3, "seconds": 0.5}, r"events.0.at.seconds: got 0.5, expected 0, the beginning"),
        (LinkLost, {"iteration": "3"}, r"events.0.at.iteration: got '3', expected a whole number"),
        (LinkLost, {}, r"events.0.at.iteration: got 'nothing', expected this field"),
    ],
)
def test_what_nobody_can_play_is_refused(
    kind: type[Event], at: dict[str, object], expected: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EVENT_KINDS, kind.kind, kind)
    written = json.loads(file.to_json(plan))
    more = {"rate_bps": 2e6} if issubclass(kind, RateStep) else {}
    written["events"] = [{"kind": kind.kind, "name": plan.network.directions[0].link, "at": at, **more}]
    with pytest.raises(BadInput, match=expected):
        file.from_json(json.dumps(written), "plan.json")


def test_a_kind_that_can_be_played_is_read_back(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVENT_KINDS, "rate-step", PlayedRateStep)
    step = PlayedRateStep(plan.network.directions[0].link, Moment(3, 0.5), 2e6)
    stepping = replace(plan, events=(step,))
    assert file.from_json(file.to_json(stepping), "plan.json") == stepping


@given(lost=st.lists(st.sampled_from(["ab", "ac", "cb", "bd", "c"]), unique=True, max_size=4))
def test_losses_one_after_the_other_are_those_at_once(lost: list[str]) -> None:
    from testbed.planning.resolve import network_of
    from testbed.spec.document import validate
    from testbed.spec.topology import Topology

    sites = {"a": {"nodes": 1}, "b": {"nodes": 1}, "c": {"nodes": 0}, "d": {"nodes": 1}}
    pairs = (("a", "b", 5), ("a", "c", 1), ("c", "b", 1), ("b", "d", 2))
    links = [{"name": a + b, "between": [a, b], "delay": f"{d} ms", "rate": "1 Gbit/s"} for a, b, d in pairs]
    whole = planned(network_of(validate(Topology, {"name": "net", "datacenters": sites, "links": links}, "net")))
    one_by_one = whole
    for name in lost:
        one_by_one = one_by_one.without(name)
    assert one_by_one == whole.without(*lost)
    assert one_by_one.routes == whole.without(*lost).routes
    assert all(one_by_one.down.isdisjoint(route) for route in one_by_one.routes.values())


def test_only_the_network_state_reads_the_directions_of_a_plan() -> None:
    """Outside the lab. A topology's `directions()` is what a file says before there is a plan."""
    found = set()
    for path in sorted((ROOT / "testbed").rglob("*.py")):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if ".directions" not in text:
            continue  # it takes long to parse them all
        tree = ast.parse(text)
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        reads = (
            isinstance(node, ast.Attribute) and node.attr == "directions" and id(node) not in called
            for node in ast.walk(tree)
        )
        if any(reads) and not name.startswith("testbed/lab/"):
            found.add(name)
    assert found == {READS}
