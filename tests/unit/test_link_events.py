"""Events of links: what a line may say, where it comes in a training, and what is predicted of every iteration."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_process import run_testbed

from testbed.cli.event_tables import predicted_event_tables, predicted_spans
from testbed.errors import BadInput, RunFailed
from testbed.lab.metrics import Metrics
from testbed.lab.shaping import TimedChange
from testbed.lab.shaping.change_clock import ChangeClock
from testbed.model.network import LinkChanges, idle, no_queues, occupy
from testbed.model.replay import on_the_way_s
from testbed.plan.framing import MTU
from testbed.plan.plan import Plan
from testbed.plan.timeline import LinkEvent, Moment
from testbed.planning import file
from testbed.planning.left_out import warnings
from testbed.planning.prediction import predict_training, predicted_rows, ranges_of_plan
from testbed.planning.resolve import make_plan, with_shaper
from testbed.planning.schedules import choose, make, with_selected
from testbed.session import deadlines
from testbed.spec import load_topology, load_workload
from testbed.spec.document import FieldError, validate
from testbed.spec.event_text import Becomes, read_event
from testbed.spec.topology import Topology, with_events
from testbed.trace.predictions import predicted_times_s

ROOT = Path(__file__).parents[2]
TOPOLOGY, WORKLOAD = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"


def link() -> str:
    return load_topology(TOPOLOGY).links[0].resolved_name()


def planned(*events: str, iterations: int = 6, schedule: str = "1f1b") -> Plan:
    """Two datacenters, with these events: NORTH stands for the link."""
    topology = with_events(load_topology(TOPOLOGY), [event.replace("NORTH", link()) for event in events])
    plan = make_plan(topology, load_workload(WORKLOAD, {"iterations": str(iterations), "warmup": "1"}))
    return with_selected(plan, [make(plan, choose(plan, [schedule]))])


def times(plan: Plan) -> list[float]:
    """Of every measured iteration, as predicted."""
    rounds = range(1, 1 + plan.jobs[0].workload.iterations)
    return list(map(float, predicted_times_s(predict_training(plan, plan.cases[0]).trace, rounds)))


@pytest.mark.parametrize(
    ("text", "iteration", "seconds", "down_s", "becomes"),
    [
        ("link north rate 200 Mbit/s at iteration 4", 4, 0.0, 0.0, Becomes(rate_bps=2e8)),
        ("link north a -> b rate 60 % at iteration 4 + 120 ms", 4, 0.12, 0.0, Becomes(rate_share=0.6)),
        ("link north rate 60 % at 4 + 120 ms", 4, 0.12, 0.0, Becomes(rate_share=0.6)),
        ("link north loss 1 % at 1 s", 0, 1.0, 0.0, Becomes(loss=0.01)),
        ("link north loss 0.01 at 1 s", 0, 1.0, 0.0, Becomes(loss=0.01)),
        ("link a--b delay 12 ms at 3.2 s", 0, 3.2, 0.0, Becomes(delay_s=0.012)),
        ("link north down for 30 ms then delay 9 ms at iteration 0", 0, 0.0, 0.03, Becomes(delay_s=0.009)),
        ("link x down for 8 s then rate 50 % then delay 1 ms at 1 s", 0, 1.0, 8.0, Becomes(0.001, rate_share=0.5)),
        ("datacenter b down for 8 s at iteration 2", 2, 0.0, 8.0, Becomes()),
    ],
)
def test_a_line_says_what_happens_and_when(
    text: str, iteration: int, seconds: float, down_s: float, becomes: Becomes
) -> None:
    read = read_event(text)
    assert read.iteration == iteration
    assert read.down_s == pytest.approx(down_s)
    assert read.becomes == pytest.approx(becomes)
    assert read.seconds == pytest.approx(seconds)
    assert read.ends == (("a", "b") if "->" in text else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("link north rate 60 %", "got .*, expected at iteration 4, at iteration 4 . 120 ms, or at 3.2 s"),
        ("link north rate 60 % at iteration -1", "got '-1', expected the number of a measured iteration"),
        ("link north rate 60 % at iteration 1 + 3", "got '3', expected a time with a unit"),
        ("link north rate 60 % at dawn", "got 'dawn', expected a time with a unit"),
        ("link north rate 0 % at 1 s", "got '0 %', expected a share of the topology's rate above 0 %"),
        ("link north rate 10 bit/s at 1 s", "got '10 bit/s', expected a rate from 1000 to 1e.15 bit/s"),
        ("link north bends at 1 s", "got 'bends', expected rate 200 Mbit/s, rate 60 %, delay 12 ms, delay x4"),
        ("link north rate 5 % then delay 1 ms at 1 s", "`then` is for what comes back"),
        ("link north down for 0 s at 1 s", "got '0 s', expected a time from 1e-09 to 3600 s"),
        ("datacenter a rate 5 % at 1 s", "expected datacenter NAME down for 8 s"),
        ("link north cut for 3 s every 2 s until 9 s at 1 s", "expected more time from one to the next than it is for"),
        ("link north cut for 1 s every 2 s at 1 s", "expected rate 200 Mbit/s"),
        ("link north shared 100 % for 1 s every 2 s until 3 s at 1 s", "a share of the rate below 100 %"),
        ("rank 3 slow at 1 s", "got 'rank 3 slow', expected .JOB. rank 2 slower x1.5"),
        (
            "link north trace link.csv at 1 for 3 s",
            "got 'link north trace link.csv at 1 for 3 s', expected an end only",
        ),
    ],
)
def test_what_no_line_can_say_is_refused(text: str, expected: str) -> None:
    document = {
        "name": "net",
        "datacenters": {"a": {"nodes": 1}, "b": {"nodes": 1}},
        "links": [{"name": "north", "between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"}],
    }
    with pytest.raises(BadInput, match=f"--event: (event|{re.escape(text)}): .*{expected}"):
        with_events(validate(Topology, document, "net"), [text])
    if text.startswith(("link", "datacenter")) and " at " in text:
        with pytest.raises(BadInput, match=f"net: events.0: .*{expected}"):
            validate(Topology, document | {"events": [text]}, "net")


@given(st.text(max_size=60), st.sampled_from(["", "link north ", "link north down for ", "datacenter a "]))
def test_any_other_text_is_an_error_with_words(text: str, begins: str) -> None:
    with suppress(FieldError):
        read_event(begins + text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["link x rate 5 % at 1 s"], "error: --event: link x rate 5 % at 1 s: got 'x', expected one of the links"),
        (["link {north} rate 5 % at iteration 9"], "--event link .*: event.at.iteration: got 9, expected 0 to 1"),
        (["datacenter x down for 1 s at 1 s"], "got 'x', expected one of the datacenters that have links"),
        (["link {north} a -> b rate 5 % at 1 s"], "got 'a -> b', expected"),
        (
            ["link {north} rate 5 % at 60 s"],
            "error: event: at: got .link .* at 60 s., expected a moment before",
        ),
    ],
)
def test_the_command_says_what_is_wrong(words: list[str], expected: str) -> None:
    events = [word for text in words for word in ("--event", text.format(north=link()))]
    few = ("--set", "iterations=2", "--schedule", "1f1b")
    done = run_testbed("predict", "two-dc-longhaul", "tiny-gpt-pp4", *few, *events, COLUMNS="500")
    assert done.returncode == 2, done.stdout
    assert len(done.stderr.splitlines()) == 1
    assert re.search(expected, done.stderr), done.stderr


def test_an_outage_that_netem_cannot_play_is_refused_before_anything_starts() -> None:
    event = f"link {link()} down at iteration 1"
    words = ("run", "two-dc-longhaul", "tiny-gpt-pp4", "--clock", "virtual", "--schedule", "1f1b", "--event", event)
    done = run_testbed(*words, "--shaper", "netem", COLUMNS="500")
    assert done.returncode == 2, done.stderr
    assert f"event: end: got '{event}', expected under netem, an outage that is over in the iteration" in done.stderr


@pytest.mark.parametrize("does", ["lost", "jitter 3 s"])
def test_what_cannot_be_of_a_link_is_blamed_on_the_option(does: str) -> None:
    words = ("predict", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b")
    done = run_testbed(*words, "--event", f"link {link()} {does} at 1", COLUMNS="500")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: --event: events: got 'link {link()} {does} at 1'")


def test_an_event_behind_the_training_is_refused_before_anything_starts() -> None:
    words = ("run", "two-dc-longhaul", "tiny-gpt-pp4", "--clock", "virtual", "--schedule", "1f1b")
    done = run_testbed(*words, "--event", f"link {link()} rate 5 % at 60 s", COLUMNS="500")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()  # and no word of a boot
    assert "expected a moment before" in line


def test_a_plan_says_by_its_shaper_whom_a_change_is_for() -> None:
    plan = planned("link NORTH rate 40 % at iteration 1")
    netem, relay = with_shaper(plan, "netem"), with_shaper(plan, "relay")
    assert (netem.changes_for, relay.changes_for, with_shaper(netem, "auto").changes_for) == ("comers", *["unsent"] * 2)
    assert file.from_json(file.to_json(netem), "plan.json") == netem
    assert "changes_for" not in file.to_json(relay)
    assert with_shaper(replace(plan, events=()), "netem").changes_for == "unsent", "nothing happens"


def test_what_waits_keeps_the_time_that_it_came_with() -> None:
    """Two messages of 100 bytes at 10 bytes a second; while the first is sent, the link becomes twice as slow and 5 s
    shorter, and a third comes."""
    ints, floats = np.array, np.array
    changes = LinkChanges(ints([0, 1]), floats([5.0]), floats([2.0]), floats([0.2]))
    for stamped, expected in ((True, [17.0, 27.0, 47.0]), (False, [17.0, 37.0, 57.0])):
        wires = idle(floats([7.0]), floats([0.1]), changes, stamped, no_queues(1))
        out = []
        for came in (0.0, 0.0, 6.0):
            occupy(wires, 0, 100.0, came, came)
            out.append(float(wires.out_s[0]))
        assert out == expected


def test_a_message_does_not_overtake_its_own_beginning() -> None:
    """Its last tenth leaves with a delay of 1 ms, what left just before that comes out after one of 10.2 ms."""
    steady = planned(iterations=3)
    messages = predict_training(steady, steady.cases[0]).trace.messages
    first = messages[(messages["source_rank"] == 1) & (messages["target_rank"] == 2)][0]
    wire_s = 8 * float(first["wire_bytes"]) / steady.network.directions[0].rate_bps
    at_s = float(first["sent_s"]) + 0.9 * wire_s
    plan = planned(f"link NORTH delay 1 ms at iteration 1 + {1e3 * at_s:.6f} ms", iterations=3)
    trace = predict_training(plan, plan.cases[0]).trace.of_iteration(2)
    same = [trace.messages[name] == first[name] for name in ("kind", "source_rank", "target_rank", "microbatch")]
    (found,) = trace.messages[np.logical_and.reduce(same)]
    packet_s = 8 * 66_000 / steady.network.directions[0].rate_bps
    old_delay_s = steady.network.directions[0].delay_s
    assert found["sent_s"] == pytest.approx(float(first["sent_s"]))
    assert at_s + old_delay_s - packet_s <= float(found["arrived_s"]) <= at_s + old_delay_s


def test_changes_are_played_in_order_of_time_and_a_refused_one_is_an_error() -> None:
    played: list[float] = []

    def play(one: TimedChange) -> None:
        if one.rate_bps == 0:
            raise RunFailed("refused")
        played.append(one.at_s)

    now = time.monotonic()
    late, soon, over = now + 0.06, now + 0.02, now - 1.0
    clock = ChangeClock(play)
    clock.schedule([TimedChange(late, 0, 1e-3), TimedChange(soon, 0, 2e-3)])
    clock.schedule([TimedChange(over, 1, 3e-3)])
    assert len(clock.happened()) >= 1
    time.sleep(max(0.0, late - time.monotonic()))
    happened = clock.happened()
    assert played == [over, soon, late]
    assert all(instant >= late or instant >= soon for instant in happened)
    clock.schedule([TimedChange(now, 0, rate_bps=0.0)])
    with pytest.raises(RunFailed, match="a link could not be changed: refused"):
        clock.happened()
    clock.close()


def test_predict_shows_the_iterations_around_an_event() -> None:
    words = ("predict", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--set", "iterations=4")
    event = f"link {link()} rate 40 % at iteration 1 + 100 ms"
    done = run_testbed(*words, "--event", event, "--json", "--quiet")
    spans = json.loads(done.stdout)["iterations"]
    assert [(span["first"], span["last"], span["events"]) for span in spans] == [
        (0, 0, []),
        (1, 1, [event]),
        (2, 3, []),
    ]
    shown = run_testbed(*words, "--event", event, "--quiet", COLUMNS="120").stdout
    assert "iterations as links and ranks change" in shown
    assert "iterations" not in json.loads(run_testbed(*words, "--json", "--quiet").stdout)


def test_what_is_over_is_said_to_be_unless_it_ends_in_the_iteration_in_which_it_begins() -> None:
    words = ("predict", "two-dc-longhaul", "tiny-gpt-pp4", "--schedule", "1f1b", "--set", "iterations=6")
    longer, cut = f"link {link()} delay x4 at 1 to 4", f"link {link()} down for 30 ms at 2"
    then = f"link {link()} down for 90 ms then rate 90 % at 5"
    events = [part for event in (longer, cut, then) for part in ("--event", event)]
    spans = json.loads(run_testbed(*words, *events, "--json", "--quiet").stdout)["iterations"]
    told = {span["first"]: span["events"] for span in spans if span["events"]}
    assert told == {1: [longer], 2: [cut], 4: [f"{longer}: over"], 5: [then]}


def test_a_link_that_changes_once_it_is_lost_is_nobodys(tmp_path: Path) -> None:
    words = ("--event", f"link {link()} rate 50 % at iteration 1", "--lose", f"{link()}@1", "-o", tmp_path / "p.json")
    done = run_testbed("plan", "two-dc-longhaul", "tiny-gpt-pp4", *words)
    assert done.returncode == 2
    assert "--lose" in done.stderr, "no route is left, which is what is wrong"


def test_a_plan_keeps_its_events_direction_by_direction() -> None:
    plan = planned("link NORTH down for 2 s then rate 50 % at iteration 2 + 100 ms")
    planned_bps = plan.network.directions[0].rate_bps
    first, second, *later = plan.events
    assert {event.at for event in (first, second)} == {Moment(2, 0.1)}
    assert isinstance(first, LinkEvent)
    assert (first.direction, first.sends, first.rate_bps) == (0, False, None)
    assert {(one.at, one.rate_bps, one.sends) for one in later if isinstance(one, LinkEvent)} == {
        (Moment(2, 2.1), planned_bps / 2, True)
    }
    assert file.from_json(file.to_json(plan), "plan.json") == plan
    wrong = replace(plan, events=(replace(first, direction=2), *plan.events[1:]))
    with pytest.raises(BadInput, match=r"events.0.direction: got 2, expected a direction of .* \(0, 1\)"):
        file.from_json(file.to_json(wrong), "plan.json")


def test_every_iteration_has_a_prediction_of_its_own() -> None:
    steady, *_ = times(planned())
    step = times(planned("link NORTH rate 40 % at iteration 2 + 100 ms"))
    assert step[:2] == [steady] * 2
    assert steady < step[2] < step[3]
    assert step[3:] == step[3:4] * 3
    slow = times(planned("link NORTH rate 40 % at iteration 0"))
    assert slow == pytest.approx(step[3:4] * 6), "the first that counts has it from its beginning on"


def test_an_outage_holds_what_waits_and_is_over_then() -> None:
    steady, *_ = times(planned())
    gap = times(planned("link NORTH down for 8 s at iteration 1 + 200 ms"))
    assert gap[0] == steady
    assert 8 < gap[1] < 8 + steady
    assert gap[2:] == [steady] * 4


def test_a_link_that_sends_nothing_and_that_nobody_crosses_changes_nothing() -> None:
    """What comes later does, and drawn slots."""
    link = {"between": ["a", "b"], "rate": "1 Gbit/s"}
    both = [{"name": "used", "delay": "10 ms", **link}, {"name": "spare", "delay": "20 ms", **link}]
    topology = {"name": "two", "datacenters": {"a": {"nodes": 2}, "b": {"nodes": 2}}, "links": both}

    def of(*events: str, pacing: str = "{F: 20 ms, I: 20 ms, W: 20 ms}") -> list[float]:
        settings = {"iterations": "6", "warmup": "1", "pacing": pacing}
        plan = make_plan(
            with_events(validate(Topology, topology, "two.yaml"), events), load_workload(WORKLOAD, settings)
        )
        return times(with_selected(plan, [make(plan, choose(plan, ["1f1b"]))]))

    later = "rank 2 slower x1.5 at 3", "link used delay x2 at 4"
    assert of("link spare down at 1", *later) == of(*later)
    assert len(set(of(*later))) == 3
    drawn = "{F: {median: 20 ms, p95: 30 ms}, I: 20 ms, W: 20 ms}"
    assert of("link spare down at 1", pacing=drawn) == of(pacing=drawn)


def test_outages_that_overlap_are_over_when_the_last_one_is() -> None:
    alone = times(planned("link NORTH down for 2 s at iteration 1 + 200 ms"))
    site = planned().network.directions[0].target
    inside = f"datacenter {site} down for 300 ms at iteration 1 + 400 ms"
    assert times(planned("link NORTH down for 2 s at iteration 1 + 200 ms", inside)) == pytest.approx(alone)
    longer = f"datacenter {site} down for 3 s at iteration 1 + 200 ms"
    both = times(planned("link NORTH down for 2 s at iteration 1 + 200 ms", longer))
    assert both == pytest.approx(times(planned(longer)))


def test_seconds_go_on_in_the_next_iteration() -> None:
    steady, *_ = times(planned())
    counted = predict_training(plan := planned(f"link NORTH delay 40 ms at {2.5 * steady:.9f} s"), planned().cases[0])
    (first, _) = counted.events
    assert first.round == 3
    assert first.seconds == pytest.approx(0.5 * steady)
    assert times(plan)[:2] == [steady] * 2
    assert times(plan)[2] > steady
    assert times(plan) == pytest.approx(times(planned(f"link NORTH delay 40 ms at iteration 2 + {0.5 * steady:.9f} s")))


def test_what_is_said_of_the_whole_is_of_the_usual_iteration() -> None:
    plan = planned("link NORTH rate 40 % at iteration 1")
    (row,), (known,) = predicted_rows(plan), ranges_of_plan(plan).values()
    assert row.predicted_s == pytest.approx(times(plan)[3])
    assert known[0] is None or known[0].low_s <= row.predicted_s <= known[0].high_s


def test_links_are_replayed_as_they_were_in_that_iteration() -> None:
    plan = planned("link NORTH rate 40 % at iteration 1 + 100 ms")
    training = predict_training(plan, plan.cases[0])
    numbers = training.trace.iterations().tolist()
    (took_s,) = on_the_way_s(training.loads_of(0), [training.trace], order_sensitive=True, loads_of=training.loads_of)
    messages = training.trace.messages
    assert numbers == [0, 2, 3]
    assert took_s == pytest.approx(messages["arrived_s"] - messages["sent_s"], abs=1e-9)


def test_a_trace_is_a_step_for_each_line(tmp_path: Path) -> None:
    file_, planned_bps = tmp_path / "link.csv", planned().network.directions[0].rate_bps
    file_.write_text("at_s,delay_s,rate_bps\n0,,2e8\n0.25,0.02,\n3.5,0.01,1e9\n60,0,\n")
    plan = planned(f"link NORTH trace {file_} at iteration 1 + 50 ms")
    *mine, _ = [event for event in plan.events if isinstance(event, LinkEvent) and event.direction == 0]
    assert [(event.at.iteration, event.delay_s, event.rate_bps) for event in mine] == [
        (1, None, 2e8),
        (1, 0.02, None),
        (1, 0.01, 1e9),
    ]
    assert [event.at.seconds for event in mine] == pytest.approx([0.05, 0.3, 3.55])
    before, across, *_, last = times(plan)
    assert before < across
    assert planned_bps != 1e9 or last == pytest.approx(before, rel=0.2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: got 'nothing', expected at_s, delay_s, rate_bps"),
        ("a,b\n", "line 1: got .*, expected at_s, delay_s, rate_bps"),
        ("at_s,delay_s,rate_bps\n", "rows: got 0, expected 1 to 10000"),
        ("at_s,delay_s,rate_bps\n1,2\n", "line 2: got .*, expected 3 values"),
        ("at_s,delay_s,rate_bps\n0,,x\n", "line 2: rate_bps: got 'x', expected a number from 1000 to 1e.15"),
        ("at_s,delay_s,rate_bps\n0,,1e6\n2,1,\n1,,1e6\n", "line 4: at_s: got '1', expected 2 or more, in order"),
        ("at_s,delay_s,rate_bps\n1_0,1,\n", "line 2: at_s: got '1_0', expected a number from 0"),
        ("at_s,delay_s,rate_bps\n0,\u0660.\u0663,\n", "line 2: delay_s: got '.*', expected a number from 0 to 10"),
        ("at_s,delay_s,rate_bps\n0,11,\n", "line 2: delay_s: got '11', expected a number from 0 to 10"),
        ("at_s,delay_s,rate_bps\n,1,\n", "line 2: at_s: got '', expected 0 or more, in order of time"),
    ],
)
def test_a_trace_that_is_none_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "link.csv").write_text(text)
    with pytest.raises(BadInput, match=f"link.csv: {expected}"):
        planned(f"link NORTH trace {tmp_path / 'link.csv'} at 1 s")
    with pytest.raises(BadInput, match=r"none.csv: .*expected a readable CSV file"):
        planned(f"link NORTH trace {tmp_path / 'none.csv'} at 1 s")


def test_what_comes_and_goes_does_so_regularly_or_by_a_seed() -> None:
    regular = read_event("link north cut for 50 ms every 300 ms until 700 ms at 1 s").comes_and_goes
    assert regular is not None
    assert [time for span in regular.spans() for time in span] == pytest.approx([0, 0.05, 0.3, 0.35, 0.6, 0.65])
    drawn = regular._replace(seed=7, until_s=300.0)
    assert drawn.spans() == drawn.spans() != drawn._replace(seed=8).spans()
    lengths = [end - begin for begin, end in drawn.spans()]
    assert sum(lengths) / len(lengths) == pytest.approx(0.05, rel=0.15)
    assert 300 / len(lengths) == pytest.approx(0.3, rel=0.15)
    assert all(one[1] <= other[0] for one, other in pairwise(drawn.spans()))


def test_others_take_a_share_of_the_rate_for_a_while() -> None:
    plan = planned("link NORTH shared 40 % for 200 ms every 500 ms until 1 s at iteration 1")
    planned_bps = plan.network.directions[0].rate_bps
    mine = [event for event in plan.events if isinstance(event, LinkEvent) and event.direction == 0]
    assert [event.at.seconds for event in mine] == pytest.approx([0, 0.2, 0.5, 0.7])
    assert [event.rate_bps for event in mine] == pytest.approx([0.6 * planned_bps, planned_bps] * 2)
    assert {event.sends for event in mine} == {None}
    steady, slower, *_ = times(plan)
    assert slower > steady
    cut = times(planned("link NORTH cut for 90 ms every 400 ms until 900 ms seed 3 at iteration 1"))
    assert cut[0] == steady < max(cut)
    assert cut[-1] == steady


def test_what_never_sends_again_ends_the_training_and_predictions_say_so() -> None:
    steady, *_ = times(planned())
    plan = planned("link NORTH down at iteration 2 + 100 ms", "link NORTH rate 50 % at iteration 4")
    training = predict_training(plan, plan.cases[0])
    assert training.endless is not None
    assert (training.endless.round, training.endless.event.sends) == (3, False)
    assert times(plan) == [steady] * 6, "without it"
    assert "iteration 2 never ends, with link" in warnings(plan)[0]
    spans = predicted_spans(plan)
    assert [(span["first"], span["last"], span["predicted_s"]) for span in spans] == [(0, 1, steady), (2, 2, None)]
    assert [span["events"] for span in spans] == [[], [f"link {link()} down at iteration 2 + 100 ms"]]
    assert "never ends" in list(predicted_event_tables(spans, 80)[0].columns[2].cells)
    first = planned("link NORTH down at iteration 0")
    assert predict_training(first, first.cases[0]).endless is not None
    assert "iteration 0 never ends" in warnings(first)[0]
    assert [(span["first"], span["last"], span["predicted_s"]) for span in predicted_spans(first)] == [(0, 0, None)]


def test_deadlines_know_how_long_nothing_is_sent() -> None:
    plan = planned("link NORTH down for 90 s at iteration 2 + 100 ms", "link NORTH down for 50 ms at iteration 2 + 1 s")
    training, (steady, *_) = predict_training(plan, plan.cases[0]), times(planned())
    assert training.held_s == {3: pytest.approx(90.0)}
    deadline = deadlines.of_training(training)
    assert 100 < deadline.seconds < 100 + 11 * steady
    assert str(deadline).endswith("+ 90 s without a link)")
    assert deadlines.of_peers(plan) == deadlines.PEER_TIMEOUT_S
    longer = planned("link NORTH down for 1000 s at iteration 2 + 100 ms")
    assert deadlines.of_peers(longer) > 1010, "gloo waits longer than that, too"


def test_a_deadline_names_what_loses_packets_for_how_long_that_takes_nobody_knows() -> None:
    plan = planned("link NORTH loss 20 % at iteration 1", "link NORTH jitter 1 ms at iteration 1")
    said = str(deadlines.of_training(predict_training(plan, plan.cases[0])))
    assert said.endswith(f" + 10 s; link {link()} loss 20 % at iteration 1 may take longer)")


def test_loss_and_jitter_are_read_and_said_to_be_left_out() -> None:
    plan = planned("link NORTH loss 1 % at iteration 2 + 100 ms for 300 ms", "link NORTH jitter 2 ms for 1 s at 4")
    links = [event for event in plan.events if isinstance(event, LinkEvent) and event.direction == 0]
    assert [(event.at.iteration, event.loss, event.jitter_s) for event in links] == [
        (2, 0.01, None),
        (2, 0.0, None),
        (4, None, 0.002),
        (4, None, 0.0),
    ]
    assert file.from_json(file.to_json(plan), "plan.json") == plan
    assert set(plan.framing.gso_bytes.values()) == {MTU}, "packets are lost one by one"
    training = predict_training(plan, plan.cases[0])
    assert training.by_chance == {3, 4, 5, 6}, "what is lost leaves smaller windows"
    assert times(plan)[:2] == times(plan)[2:4]
    assert "iterations 2 to 5 are not compared; what is lost" in warnings(plan)[0]
    jitter = planned("link NORTH jitter 2 ms for 1 s at 3")
    assert predict_training(jitter, jitter.cases[0]).by_chance == {4, 5}, "1 s is more than an iteration"
    assert "iterations 3 to 4 are not compared" in warnings(jitter)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("link NORTH loss 0 % at 1", "loss of more than 0 % of packets"),
        ("link NORTH loss 60 % at 1", "loss of more than 0 % of packets, at most 50 %"),
        ("link NORTH loss 3 at 1", "loss of more than 0 %"),
        ("link NORTH jitter 40 ms at 1", "at most the delay of paris->warsaw, 10.2 ms"),
        ("link NORTH lost at 1", "--lose .*@1"),
        ("link NORTH delay x4 at 1 to 3 for 2 s", "one of `to` and `for`"),
        ("link NORTH down for 3 s at 1 to 3", "an end only of what changes"),
        ("link NORTH delay x2000 at 1", "a factor from x0.01 to x1000"),
        ("link NORTH delay x999 at 1", "a delay of at most 10 s"),
        ("link NORTH traffic 100 % every 2 at 1", "less than 100 %"),
        ("link NORTH traffic 60 % every 2 at 1 + 5 ms", "traffic from the beginning of an iteration on"),
        ("link NORTH traffic 60 % every 2 at 1.5 s", "traffic from the beginning of an iteration on"),
    ],
)
def test_what_cannot_be_played_is_refused(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        planned(text)


def test_what_is_for_a_while_is_as_planned_afterwards() -> None:
    direction = planned().network.directions[0]
    for text in ("link NORTH rate x0.4 at 1 to 3", "link NORTH rate 40 % at iteration 1 to iteration 3"):
        mine = [one for one in planned(text).events if isinstance(one, LinkEvent) and one.direction == 0]
        assert [(one.at, one.rate_bps) for one in mine] == [
            (Moment(1), pytest.approx(0.4 * direction.rate_bps)),
            (Moment(3), direction.rate_bps),
        ]
    delayed = planned("link NORTH delay x2 at iteration 1 + 50 ms for 2 s").events
    assert [(one.at, one.delay_s) for one in delayed if isinstance(one, LinkEvent) and one.direction == 0] == [
        (Moment(1, 0.05), 2 * direction.delay_s),
        (Moment(1, 2.05), direction.delay_s),
    ]
    traffic = planned("link NORTH traffic 60 % every 2 at 1 to 6", iterations=8).events
    shared = [one for one in traffic if isinstance(one, LinkEvent) and one.direction == 0]
    assert [one.at.iteration for one in shared] == [1, 3, 5, 6]
    assert [one.rate_bps for one in shared] == pytest.approx([share * direction.rate_bps for share in (0.4, 1, 0.4, 1)])


def test_tcp_waits_until_the_last_of_outages_that_overlap_is_over() -> None:
    north = planned().network.directions[0]
    first = "link NORTH down for 2 s at iteration 1 + 200 ms"
    longer = f"link NORTH {north.source} -> {north.target} down for 5 s at iteration 1 + 1 s"
    plan = planned(first, longer, "link NORTH down for 500 ms at iteration 3")
    metrics = Metrics(plan.network, 1_000_000, [event for event in plan.events if isinstance(event, LinkEvent)])
    usual = Metrics(planned().network, 1_000_000)
    node, target = f"{north.source}/0", north.target
    waits_ms, usual_ms = (of.of_route(node, target, (0,), (1,))["rto_min"] for of in (metrics, usual))
    assert waits_ms - usual_ms == pytest.approx(5800 + 500, abs=2)


@pytest.mark.parametrize("ends", ["rate 30 % at 1 to 3", "shared 70 % for 100 ms every 150 ms until 100 ms at 3"])
def test_what_begins_as_another_ends_is_so_whichever_was_said_first(ends: str) -> None:
    """An end makes a link as planned: not what somebody says of it from that very moment on."""
    begins = "rate 50 % at 3" if " to " in ends else "rate 50 % at 3 + 100 ms"
    one, other = (planned(*(f"link NORTH {text}" for text in order)) for order in ((ends, begins), (begins, ends)))
    assert times(one) == times(other)
    assert times(one)[-1] == times(planned("link NORTH rate 50 % at 0"))[-1] > times(planned())[-1]
