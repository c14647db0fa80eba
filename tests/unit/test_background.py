"""Traffic beside the jobs: the CSV file, the model against a queue by hand, and what policies see of it."""

from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path

import pytest
from test_jobs_sharing import LINE, TWO_WAYS, job, planned
from typer.testing import CliRunner

from testbed.cli import app
from testbed.errors import BadInput
from testbed.model.simulate import makespan, simulate
from testbed.plan import costs
from testbed.plan.background import DATAGRAM_BYTES, every_s, streams_on
from testbed.plan.network_state import planned as network_of
from testbed.plan.plan import Background, Plan
from testbed.planning import file
from testbed.planning.prediction import iteration_times
from testbed.planning.resolve import LEAST_DISTANCE_S, require_trainable, with_background
from testbed.routing.apply import demands, with_policies
from testbed.routing.planner import Reach
from testbed.routing.policies import choose
from testbed.trace.tables import ACTIVATION

PP4 = "tiny-gpt-pp4"
REACH = Reach(elephants_from=10e3)


def with_flows(plan: Plan, *flows: tuple[str, str, float]) -> Plan:
    return replace(plan, background=tuple(Background(*flow) for flow in flows))


def written(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "traffic.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


# --- the file --------------------------------------------------------------------------------------


def test_rows_are_flows_of_the_plan_and_of_its_file(tmp_path: Path) -> None:
    path = written(tmp_path, "from,to,rate", "a,b,40 Mbit/s", "b, a, 1.5 Mbit/s")
    plan = with_background(planned(LINE, job("first", 0)), path)
    assert plan.background == (Background("a", "b", 40e6), Background("b", "a", 1.5e6))
    assert file.from_json(file.to_json(plan), "plan.json") == plan


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("from,to", "a,b"), "line 1: got 'from,to', expected from,to,rate"),
        (("from,to,rate",), "rows: got 0, expected 1 to"),
        (("from,to,rate", "a,b,40 Mbit/s", "a,x,1 Mbit/s"), "line 3: to: got 'x', expected one of the datacenters"),
        (("from,to,rate", "a,a,1 Mbit/s"), "line 2: to: got 'a', expected another datacenter"),
        (("from,to,rate", "a,b,1"), "line 2: rate: got '1', expected a rate with a unit"),
        (("from,to,rate", "a,b,0 bit/s"), "line 2: rate: got '0 bit/s', expected more than 0"),
        (("from,to,rate", "a,b"), "line 2: got 'a,b', expected 3 values"),
        (
            ("from,to,rate", "a,b,60 Mbit/s", "a,b,36 Mbit/s"),
            "a -> b: rate: got '9.6e\\+07 bit/s', expected at most",
        ),
    ],
)
def test_a_bad_row_is_one_error(rows: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=expected) as caught:
        with_background(planned(LINE, job("first", 0)), written(tmp_path, *rows))
    assert "traffic.csv" in str(caught.value)


def test_what_it_cannot_stand_beside(tmp_path: Path) -> None:
    three = {**LINE, "datacenters": {name: {"nodes": 1} for name in "abc"}}
    three["links"] = [*LINE["links"], {**LINE["links"][0], "between": ["b", "c"]}]
    path = written(tmp_path, "from,to,rate", "a,c,1 Mbit/s")
    with pytest.raises(BadInput, match="line 2: to: got 'c', expected one whose default route from a is one link"):
        with_background(planned(three, job("first", 0)), path)
    changing = {**LINE, "events": ["link a--b rate 60 % at iteration 1"]}
    path = written(tmp_path, "from,to,rate", "a,b,1 Mbit/s")
    with pytest.raises(BadInput, match="no events beside it"):
        with_background(planned(changing, job("first", 0)), path)
    wide = {**LINE, "links": [{**LINE["links"][0], "rate": "1 Gbit/s"}]}
    fast = with_flows(planned(wide, job("first", 0)), ("a", "b", 8 * DATAGRAM_BYTES / LEAST_DISTANCE_S * 1.01))
    with pytest.raises(BadInput, match="a process sends it, packet by packet"):
        require_trainable(fast)


# --- the model -------------------------------------------------------------------------------------


def queue_by_hand(messages: list[tuple[float, float]], flow: Background, rate_bps: float) -> list[float]:
    """When messages (sent at, bytes) have left one link, first come, first served, datagram by datagram."""
    waiting = [(sent_s, 0, number, size) for number, (sent_s, size) in enumerate(messages)]
    count = int(max(sent_s for sent_s, _ in messages) / every_s(flow)) + 2
    waiting += [((number + 0.5) * every_s(flow), 1, number, float(DATAGRAM_BYTES)) for number in range(count)]
    heapq.heapify(waiting)
    free_s, left = 0.0, [0.0] * len(messages)
    while waiting:
        at_s, is_datagram, number, size = heapq.heappop(waiting)
        free_s = max(free_s, at_s) + 8 * size / rate_bps
        if not is_datagram:
            left[number] = free_s
    return left


@pytest.mark.parametrize("rate_bps", [7.3e6, 31e6, 61e6, 88e6])
def test_messages_and_datagrams_take_turns(rate_bps: float) -> None:
    plan = with_flows(planned(LINE, job("first", 0, microbatches="4", message="210 kB")), ("a", "b", rate_bps))
    case = plan.cases[0]
    problem, schedule = costs.problem_of_case(plan, case), costs.schedule_of(plan, case)
    assert schedule is not None
    found = simulate(problem, schedule).messages
    found = found[found["kind"] == ACTIVATION]
    # nothing goes back on this direction but datagrams: gradients' acknowledgements come much later
    sent = list(zip(found["sent_s"].tolist(), found["wire_bytes"].tolist(), strict=True))[:1]
    (expected,) = queue_by_hand(sent, plan.background[0], 100e6)
    assert found["arrived_s"][0] - problem.handover_s == pytest.approx(expected + 5e-3, abs=2e-6)
    assert makespan(problem, schedule, compiled=True) == makespan(problem, schedule, compiled=False)


def test_more_of_it_never_makes_an_iteration_shorter_and_the_other_direction_counts_too() -> None:
    plan = planned(LINE, job("first", 0, microbatches="6", message="210 kB"))
    times = [
        iteration_times(with_flows(plan, *flows), plan.cases[0])[0]
        for flows in ((), (("a", "b", 50e6),), (("a", "b", 90e6),), (("a", "b", 90e6), ("b", "a", 90e6)))
    ]
    assert times == sorted(times)
    assert times[0] < times[2] < times[3]


def test_a_stream_begins_half_a_distance_behind_the_start() -> None:
    plan = with_flows(planned(LINE, job("first", 0)), ("b", "a", 10e6))
    (stream,) = streams_on(plan, network_of(plan.network))
    assert stream.every_s == pytest.approx(8 * DATAGRAM_BYTES / 10e6)
    assert stream.first_s == stream.every_s / 2
    assert plan.network.directions[stream.link].label == "b->a"


# --- routing ---------------------------------------------------------------------------------------


def test_policies_see_less_room_and_go_elsewhere() -> None:
    plan = planned(TWO_WAYS, job("first", 0))
    busy = with_flows(plan, ("a", "b", 80e6), ("b", "a", 80e6))
    rates = [demands(one, one.cases[0], REACH).problem.rate_bps.tolist() for one in (plan, busy)]
    assert rates[0] == [100e6] * 4
    assert rates[1] == pytest.approx([20e6, 20e6, 100e6, 100e6])
    links = []
    for one in (plan, busy):
        routed, _ = with_policies(one, [choose("greedy-bytes")], REACH)
        links.append({one.network.directions[index].link for route in routed.cases[0].routes for index in route})
    assert links == [{"a--b"}, {"north"}]


def test_the_commands_take_it(tmp_path: Path) -> None:
    path = written(tmp_path, "from,to,rate", "paris,warsaw,700 Mbit/s", "warsaw,paris,700 Mbit/s")
    plan = str(tmp_path / "plan.json")
    common = ("two-dc-longhaul", PP4, "--schedule", "1f1b", "--background", str(path))
    for words in (("predict", *common), ("route", *common), ("plan", *common, "-o", plan), ("predict", plan)):
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, done.output
    assert [flow.rate_bps for flow in file.read(Path(plan)).background] == [700e6] * 2
    done = CliRunner().invoke(app, ["predict", plan, "--background", str(path)])
    assert isinstance(done.exception, BadInput)


def test_beside_events_of_the_command_it_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path, out = written(tmp_path, "from,to,rate", "paris,warsaw,10 Mbit/s"), tmp_path / "out"
    words = ["run", "two-dc-longhaul", PP4, "--schedule", "1f1b", "--background", str(path), "--clock", "virtual"]
    slower = ["--event", "link paris--warsaw rate 50 Mbit/s at 1 s"]
    done = CliRunner().invoke(app, [*words, *slower, "--out", str(out)])
    assert isinstance(done.exception, BadInput)
    assert "no events beside it" in str(done.exception)
    assert not out.exists()
