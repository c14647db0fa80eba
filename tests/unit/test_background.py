"""Traffic beside the jobs: the CSV file, the model against a queue by hand, and what policies see of it."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_jobs_sharing import LINE, TWO_WAYS, job, planned
from typer.testing import CliRunner

from testbed.adaptation.adaptable_job import adaptable_job
from testbed.cli import app
from testbed.errors import BadInput
from testbed.lab import datagram_sender
from testbed.model.simulate import makespan, simulate
from testbed.pipeline.link import LinkChange
from testbed.plan import costs
from testbed.plan.background import DATAGRAM_BYTES, carried_bytes, every_s, route_of, spans_of, streams_on
from testbed.plan.network_state import planned as network_of
from testbed.plan.plan import Background, Plan, RateChange
from testbed.planning import file
from testbed.planning.prediction import freely, iteration_times, predict_training
from testbed.planning.resolve import LEAST_DISTANCE_S, require_trainable, with_background
from testbed.routing.apply import demands, with_policies
from testbed.routing.planner import Reach
from testbed.routing.policies import choose
from testbed.trace.predictions import predicted_times_s
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
    path = written(tmp_path, "from,to,rate", "a,b,40 Mbit/s", "b, a, 1.5 Mbit/s", "", " ")
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
            "a -> b: rate: got '96 Mbit/s', expected at most",
        ),
    ],
)
def test_a_bad_row_is_one_error(rows: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=expected) as caught:
        with_background(planned(LINE, job("first", 0)), written(tmp_path, *rows))
    assert "traffic.csv" in str(caught.value)


THREE: dict[str, Any] = {**LINE, "datacenters": {name: {"nodes": 2} for name in "abc"}}
THREE["links"] = [*LINE["links"], {**LINE["links"][0], "between": ["b", "c"], "rate": "70 Mbit/s"}]


def test_rows_with_times_are_one_flow_that_changes(tmp_path: Path) -> None:
    rows = ("a,b,40 Mbit/s,0 s", "b,a,3 Mbit/s,250 ms", "a,b,0 bit/s,1.5 s", "a,b,17 Mbit/s,2 s", "b,a,5 Mbit/s,1 s")
    path = written(tmp_path, "from,to,rate,at", *rows)
    plan = with_background(planned(LINE, job("first", 0)), path)
    there, back = plan.background
    assert there == Background("a", "b", 40e6, (RateChange(1.5, 0.0), RateChange(2.0, 17e6)))
    assert back == Background("b", "a", 0.0, (RateChange(0.25, 3e6), RateChange(1.0, 5e6)))
    assert file.from_json(file.to_json(plan), "plan.json") == plan


def test_a_topology_has_rows_and_a_file_and_the_option_adds_to_them(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = written(tmp_path / "own", "from,to,rate", "b,a,2 Mbit/s")
    rows = [{"from": "a", "to": "b", "rate": "1 Mbit/s"}, {"from": "a", "to": "b", "rate": "9 Mbit/s", "at": "30 ms"}]
    plan = planned({**LINE, "background": rows, "background_file": str(own)}, job("first", 0))
    assert plan.background == (Background("a", "b", 1e6, (RateChange(0.03, 9e6),)), Background("b", "a", 2e6))
    more = with_background(plan, written(tmp_path, "from,to,rate", "a,b,5 Mbit/s"))
    assert more.background == (*plan.background, Background("a", "b", 5e6))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (("a,b,4 Mbit/s,1 s", "a,b,5 Mbit/s,1 s"), "line 3: at: got '1 s', expected more than 1 s, in order of time"),
        (("a,b,4 Mbit/s,1 s", "a,b,5 Mbit/s,0 s"), "line 3: at: got '0 s', expected rows of one pair in order of time"),
        (
            ("a,b,4 Mbit/s,0 s", "a,b,5 Mbit/s,0 s", "a,b,6 Mbit/s,1 s"),
            "line 4: at: got '1 s', expected one row at 0 s",
        ),
        (("a,b,4 Mbit/s,1",), "line 2: at: got '1', expected a time with a unit"),
        (("a,b,4 Mbit/s,3601 s",), "line 2: at: got .*, expected 0 s to 3600 s"),
        (("a,b,0 bit/s,0 s", "a,b,0 bit/s,1 s"), "line 2: rate: got '0 bit/s', expected more than 0 bit/s, at some"),
        (("a,b,60 Mbit/s,0 s", "b,a,9 Mbit/s,0 s", "a,b,96 Mbit/s,2 s"), "a -> b: rate: got '96 Mbit/s'"),
    ],
)
def test_a_bad_time_is_one_error(rows: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=expected):
        with_background(planned(LINE, job("first", 0)), written(tmp_path, "from,to,rate,at", *rows))


def test_a_bad_row_of_a_topology_is_one_error() -> None:
    rows = [{"from": "a", "to": "b", "rate": "1 Mbit/s"}, {"from": "a", "to": "x", "rate": "9 Mbit/s"}]
    with pytest.raises(BadInput, match=r"background\.1\.to: got 'x', expected one of the datacenters"):
        planned({**LINE, "background": rows}, job("first", 0))


def test_what_it_cannot_stand_beside(tmp_path: Path) -> None:
    path = written(tmp_path, "from,to,rate", "a,c,41 Mbit/s")
    tight = {**THREE, "events": ["link b--c rate 60 % at iteration 1"]}
    expected = "a -> c: rate: got '41 Mbit/s', expected at most 95% of the rate of b->c, 42 Mbit/s after an event"
    with pytest.raises(BadInput, match=expected):
        with_background(planned(tight, job("first", 0)), path)
    gone = {**THREE, "events": ["link b--c down at iteration 1"]}
    with pytest.raises(BadInput, match=r"link b--c down at iteration 1.*expected an end of it"):
        with_background(planned(gone, job("first", 0)), path)
    # a direction that it does not cross may stay down
    with_background(planned({**THREE, "events": ["link b--c c -> b down at iteration 1"]}, job("first", 0)), path)
    wide = {**LINE, "links": [{**LINE["links"][0], "rate": "1 Gbit/s"}]}
    fast = with_flows(planned(wide, job("first", 0)), ("a", "b", 8 * DATAGRAM_BYTES / LEAST_DISTANCE_S * 1.01))
    with pytest.raises(BadInput, match="a process sends it, packet by packet"):
        require_trainable(fast)
    ports = replace(with_flows(planned(LINE, job("first", 0)), ("a", "b", 1e6)), enforcement="ports")
    with pytest.raises(BadInput, match="got 'ports', expected rules beside background traffic"):
        require_trainable(ports)


def test_what_waits_behind_an_outage_has_to_come_before_the_iteration_ends() -> None:
    plan = planned({**LINE, "events": ["link a--b a -> b down for 40 ms at iteration 0 + 30 ms"]}, job("first", 0))
    busy = with_flows(plan, ("a", "b", 40e6))
    predict_training(busy, busy.cases[0])
    (ends_s,) = iteration_times(busy, busy.cases[0])
    late = {**LINE, "events": [f"link a--b a -> b down for 40 ms at iteration 0 + {1e3 * ends_s - 1:.3f} ms"]}
    plan = planned(late, job("first", 0))
    predict_training(plan, plan.cases[0])
    busy = with_flows(plan, ("a", "b", 40e6))
    with pytest.raises(BadInput, match="expected an outage that is over in the iteration that it begins in"):
        predict_training(busy, busy.cases[0])
    # unless a controller might have chosen it, whose plan was right with what it began with
    chosen = predict_training(busy, busy.cases[0], strict=False)
    assert predicted_times_s(chosen.trace, [0]).tolist() == pytest.approx([ends_s], abs=0.05)


# --- the model -------------------------------------------------------------------------------------


def queue_by_hand(messages: list[tuple[float, float]], flow: Background, rate_bps: float) -> list[float]:
    """When messages (sent at, bytes) have left one link, first come, first served, datagram by datagram."""
    waiting = [(sent_s, 0, number, size) for number, (sent_s, size) in enumerate(messages)]
    count = int(max(sent_s for sent_s, _ in messages) / every_s(flow.rate_bps)) + 2
    waiting += [((number + 0.5) * every_s(flow.rate_bps), 1, number, float(DATAGRAM_BYTES)) for number in range(count)]
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


def test_what_links_lose_of_datagrams_is_not_carried_further() -> None:
    """Of lost frames nobody knows whose they were."""
    sites = {name: {"nodes": 3} for name in "abc"}
    ends = {"delay": "5 ms", "rate": "100 Mbit/s"}
    links = [{"between": list(pair), **ends} for pair in ("ac", "cb")]
    plan, flow = planned({**LINE, "datacenters": sites, "links": links}, job("first", 0)), Background("a", "b", 10e6)
    network = network_of(plan.network)
    first, second = route_of(network, flow)
    size = 100.0 * DATAGRAM_BYTES

    def carried(lost: dict[int, int], first_bytes: float, second_bytes: float) -> list[float]:
        counted, places = {first: first_bytes, second: second_bytes}, range(len(network.everything))
        frames = [lost.get(place, 0) for place in places]
        found = carried_bytes(network, [(flow, size)], frames, [counted.get(place, 0.0) for place in places])
        assert not any(bytes_ for place, bytes_ in enumerate(found) if place not in counted)
        return [found[first], found[second]]

    assert carried({}, size, size) == carried({}, 0.0, 2 * size) == [size, size], "whatever was counted"
    lost, fewer = {first: 7, second: 2}, [93.0 * DATAGRAM_BYTES, 91.0 * DATAGRAM_BYTES]
    assert carried(lost, *fewer) == fewer
    assert carried(lost, size - 3 * DATAGRAM_BYTES, size) == [size - 3 * DATAGRAM_BYTES, size], "others' frames"
    assert carried(lost, 0.0, 0.0) == fewer, "no more than were lost"


def test_a_stream_begins_half_a_distance_behind_the_start_and_behind_a_change() -> None:
    plan = with_flows(planned(LINE, job("first", 0)), ("b", "a", 10e6))
    (stream,) = streams_on(plan, network_of(plan.network))
    (span,) = stream.spans
    assert span == (every_s(10e6) / 2, every_s(10e6), math.inf)
    assert [plan.network.directions[index].label for index in stream.route] == ["b->a"]
    changing = Background("b", "a", 10e6, (RateChange(0.5, 0.0), RateChange(0.7, 20e6)))
    assert spans_of(changing, None) == stream.spans
    last = every_s(20e6) / 2, every_s(20e6), math.inf
    for since_s, expected in (
        (0.4, [(*span[:2], 0.1), (0.3 + last[0], *last[1:])]),
        (0.6, [(0.1 + last[0], *last[1:])]),
        (0.9, [last]),
    ):
        found = spans_of(changing, since_s)
        assert [tuple(one) for one in found] == [pytest.approx(one) for one in expected]


def sent_at(flow: Background, since_s: float | None, until_s: float) -> list[float]:
    """When datagrams are sent."""
    return sorted(
        span.first_s + number * span.every_s
        for span in spans_of(flow, since_s)
        for number in range(int(until_s / span.every_s) + 2)
        if span.first_s + number * span.every_s < min(span.before_s, until_s)
    )


def test_the_sender_sends_when_the_model_says() -> None:
    flow = Background("a", "b", 31e6, (RateChange(0.0371, 7e6), RateChange(0.11, 0.0), RateChange(0.137, 90e6)))
    due = datagram_sender._Due([5.0, *(value for span in spans_of(flow, 0.01) for value in span)])
    found: list[float] = []
    while (next_s := due.next_s()) is not None and next_s < 5.3:
        found.append(next_s - 5.0)
        due.sent()
    assert found == pytest.approx(sent_at(flow, 0.01, 0.3))
    assert len(found) > 100


def queues_by_hand(
    sent_s: float, sizes: list[float], flow: Background, rates_bps: list[float], delays_s: list[float]
) -> float:
    """When the last packet of a rank's message is at the end of the last link; each stored, queued and forwarded."""
    waiting = [(sent_s, number, size, 0) for number, size in enumerate(sizes)]
    waiting += [(at_s, -1, float(DATAGRAM_BYTES), 0) for at_s in sent_at(flow, None, sent_s + 0.1)]
    heapq.heapify(waiting)
    free_s = [0.0] * len(rates_bps)
    while True:
        at_s, number, size, hop = heapq.heappop(waiting)
        free_s[hop] = max(free_s[hop], at_s) + 8 * size / rates_bps[hop]
        there_s = free_s[hop] + delays_s[hop]
        if hop + 1 < len(rates_bps):
            heapq.heappush(waiting, (there_s, number, size, hop + 1))
        elif number == len(sizes) - 1:
            return there_s


@pytest.mark.parametrize("rate_bps", [3.1e6, 17e6, 61e6])
def test_datagrams_cross_link_after_link(rate_bps: float) -> None:
    plan = with_flows(planned(THREE, job("first", 0, placement="[a/0, c/0]", message="190 kB")), ("a", "c", rate_bps))
    case = plan.cases[0]
    problem, schedule = costs.problem_of_case(plan, case), costs.schedule_of(plan, case)
    assert schedule is not None
    assert [len(stream.route) for stream in problem.streams] == [2]
    found = simulate(problem, schedule).messages
    first = found[found["kind"] == ACTIVATION][0]
    whole, left = problem.pipelines[0].piece_bytes[0], float(first["wire_bytes"]) - problem.notice_bytes
    sizes = [problem.notice_bytes, *[whole] * int(left // whole), left % whole]
    expected_s = queues_by_hand(float(first["sent_s"]), sizes, plan.background[0], [100e6, 70e6], [5e-3, 5e-3])
    assert first["arrived_s"] - problem.handover_s == pytest.approx(expected_s, abs=2e-6)
    assert makespan(problem, schedule, compiled=True) == makespan(problem, schedule, compiled=False)


def test_by_themselves_or_carried_when_somebody_looks_datagrams_come_to_the_same() -> None:
    alone = planned(LINE, job("first", 0, microbatches="5", message="170 kB"))
    plan = with_flows(alone, ("a", "b", 93e6), ("b", "a", 9e6))
    problem, schedule = costs.problem_of_case(plan, plan.cases[0]), costs.schedule_of(plan, plan.cases[0])
    assert schedule is not None
    nothing = tuple(LinkChange(1e-3, number, *link) for number, link in enumerate(problem.links))
    one_by_one = replace(problem, changes=nothing)
    assert makespan(one_by_one, schedule) == pytest.approx(makespan(problem, schedule), rel=1e-9)
    assert makespan(problem, schedule) > 1.01 * makespan(replace(problem, streams=()), schedule)


def test_each_iteration_has_the_rates_of_its_time() -> None:
    alone = planned(LINE, job("first", 0, microbatches="5", message="170 kB", iterations="5", warmup="2"))
    steady = with_flows(alone, ("a", "b", 94e6))
    (quiet_s,), (busy_s,) = (iteration_times(one, one.cases[0]) for one in (alone, steady))
    assert busy_s > 1.02 * quiet_s
    flow = Background("a", "b", 0.0, (RateChange(1.1 * quiet_s, 94e6), RateChange(1.1 * quiet_s + 1.6 * busy_s, 0.0)))
    plan = replace(alone, background=(flow,))
    training = predict_training(plan, plan.cases[0])
    times_s = predicted_times_s(training.trace, range(7)).tolist()
    assert times_s[:3] == pytest.approx([quiet_s] * 3)  # two warm up, before the time of the trace begins
    assert 1.01 * quiet_s < times_s[3]
    assert times_s[4] != times_s[3]
    assert times_s[5:] == pytest.approx([quiet_s] * 2)
    assert training.traffic_s == pytest.approx({number: sum(times_s[2:number]) for number in range(2, 7)})


def test_jobs_that_run_freely_and_one_that_adapts_have_it_too() -> None:
    two = [job(name, place, microbatches="3", message="170 kB") for place, name in enumerate(("first", "second"))]
    plan = freely(planned(LINE, *two))
    busy = replace(plan, background=(Background("a", "b", 1e6, (RateChange(0.2, 70e6),)),))
    assert all(b > q for b, q in zip(*(iteration_times(p, p.cases[0]) for p in (busy, plan)), strict=True))
    alone = planned(LINE, job("first", 0))
    seen = adaptable_job(with_flows(alone, ("a", "b", 30e6)), [alone.cases[0].jobs[0].choice])
    assert seen.recipes == adaptable_job(alone, [alone.cases[0].jobs[0].choice]).recipes


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
        assert (words[0] == "route") != ("traffic warsaw->paris │ 700 Mbit/s beside the jobs" in done.output)
    assert [flow.rate_bps for flow in file.read(Path(plan)).background] == [700e6] * 2
    done = CliRunner().invoke(app, ["predict", plan, "--background", str(path)])
    assert isinstance(done.exception, BadInput)


def test_beside_an_event_that_leaves_no_room_it_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path, out = written(tmp_path, "from,to,rate", "paris,warsaw,60 Mbit/s"), tmp_path / "out"
    words = ["run", "two-dc-longhaul", PP4, "--schedule", "1f1b", "--background", str(path), "--clock", "virtual"]
    slower = ["--event", "link paris--warsaw rate 50 Mbit/s at 1 s"]
    done = CliRunner().invoke(app, [*words, *slower, "--out", str(out)])
    assert isinstance(done.exception, BadInput)
    assert "at most 95% of the rate" in str(done.exception)
    assert not out.exists()
